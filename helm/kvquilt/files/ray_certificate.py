"""Issues this pod's certificate for what Ray's processes say to each other, by the release's own authority.

Arguments: the authority's directory (tls.crt, tls.key), the directory to write to, names and addresses that
the certificate is for.
"""

import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = datetime.timedelta(days=3650)  # as long as the authority; pods do not live so long


def alternative(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def main(authority, directory, *names):
    authority, directory = Path(authority), Path(directory)
    issuer = x509.load_pem_x509_certificate((authority / "tls.crt").read_bytes())
    signing = serialization.load_pem_private_key((authority / "tls.key").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ray")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(min(now + VALID, issuer.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(list(map(alternative, names))), critical=False)
        .sign(signing, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for name, data in {
        "tls.crt": certificate.public_bytes(pem),
        "tls.key": private,
        "ca.crt": issuer.public_bytes(pem),
    }.items():
        with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
