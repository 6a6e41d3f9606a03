"""Reads the certificate that a stack on one machine shows to its callers."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from shared.errors import ConfigError


def server_name(path: str) -> str:
    """The first name that the certificate is for, by which it can be asked for on this machine, too.

    Raises:
        ConfigError: it cannot be read, is none, or names nobody.
    """
    try:
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_cert: {path} is no PEM certificate that can be read: {error}") from None
    for name in (*_alternatives(certificate), *_common_names(certificate)):
        return name
    raise ConfigError(f"tls_cert: {path} is for no name; issue it with a DNS name or an address")


def _alternatives(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _common_names(certificate: x509.Certificate) -> list[str]:
    return [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
