"""Whom clients of TLS servers trust."""

from __future__ import annotations

import os
import ssl

import certifi


def trusting(ca_file: str) -> ssl.SSLContext:
    """Trusts the authorities of a PEM file; empty: the usual ones.

    Raises:
        OSError: it cannot be read, or is not one.
    """
    return ssl.create_default_context(cafile=ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where())
