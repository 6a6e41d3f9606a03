"""The key of whoever asks in these tests: an administrator of every release."""

from __future__ import annotations

import tempfile
from pathlib import Path

from shared.principals.credentials import bearer
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key, utc_now
from shared.principals.keys_file import changing
from shared.principals.principal import Role
from tests.k8s.kubectl import Kubectl

SECRET = "callers"
KEY = new_key()
CREDENTIALS = bearer(KEY)


def put_keys(kubectl: Kubectl) -> None:
    """A secret as `kvquilt key` and `kubectl create secret` make it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        roles, now = frozenset({Role.ADMIN}), utc_now()
        admin = KeyRecord(id_of(KEY), "tests", KeyKind.KEY, "default", roles, hash=hash_of(KEY), created=now)
        with changing(path) as records:
            records.append(admin)
        values = {"keys.json": path.read_text(encoding="utf-8"), "admin": KEY}
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": values})
