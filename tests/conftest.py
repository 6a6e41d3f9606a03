from __future__ import annotations

import os

import pytest

from tests.helm import HelmPlugin, helm
from tests.minio_server import S3ServerPlugin, own_server, s3_server

__all__ = ["helm", "own_server", "s3_server"]

# Triton decides at its import whether it interprets: those tests run in a process of their own.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreter"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(S3ServerPlugin(), "kvquilt-s3-server")
    config.pluginmanager.register(HelmPlugin(), "kvquilt-helm")
