"""Checks what the services need of others: the model's files, the object store with its keys, the collector
of traces, and, where a stack runs, whether its services are ready."""

from __future__ import annotations

import datetime
import email.utils
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from cluster.doctor.diagnosis import Examined, Outcome, ok
from cluster.models.names import gguf_of
from cluster.models.resolution import resolve_model
from shared.errors import KvquiltError
from shared.principals.config import AuthMode
from shared.principals.keys import utc_now
from shared.principals.keys_file import read_keys
from shared.tls import trusting
from shared.tracing.provider import ENDPOINTS, has_endpoint

_CONNECT_S = 3.0
_SOON = datetime.timedelta(days=7)
_MOST_SKEW_S = 60.0
_OTLP_PORTS = {"http": 80, "https": 443}


def check_model(installation: Examined) -> tuple[Outcome, str, str]:
    """That its files are here, and what they say they are."""
    named = installation.config.model
    if gguf := gguf_of(named):
        return ok(
            f"{gguf[0].name}, {gguf[0].stat().st_size / (1 << 20):.0f} MiB, converted once by `kvquilt up`"
        )
    model = resolve_model(named, "model", installation.environ)
    directory = Path(model)
    if not directory.is_dir():
        remedy = f"`kvquilt models pull {model}@REVISION` brings it once and for all"
        return "warn", f"{model} is fetched from the hub when the services start", remedy
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kind = ", ".join(config.get("architectures") or ["of no named architecture"])
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if not weights:
        return "fail", f"{directory} holds no *.safetensors", "give a directory of save_pretrained"
    if not os.access(directory, os.R_OK | os.X_OK):
        return "fail", f"{directory} cannot be read", "let this user read it"
    return ok(f"{kind}, {weights / (1 << 20):.0f} MiB")


def check_object_store(installation: Examined) -> tuple[Outcome, str, str]:
    """Reachable, with the keys that are configured, and of about the same time. Makes nothing."""
    settings = installation.config.kv_store.objects
    if not settings.endpoint:
        return ok("none is configured: disks hold the truth")
    from services.kv_store.s3.bucket import ObjectBlobs

    try:
        ObjectBlobs(replace(settings, create_bucket=False, retry_s=0.0)).check()
    except KvquiltError as error:
        return (
            "fail",
            error.detail,
            "see kv_store.objects, and the keys in the environment or credentials_file",
        )
    apart_s = _skew_s(settings.endpoint, settings.secure, settings.ca_file)
    if apart_s is not None and apart_s > _MOST_SKEW_S:
        return "warn", f"its clock is {apart_s:.0f} s from ours", "let both follow one time server (NTP)"
    return ok(f"bucket {settings.bucket} answers")


def check_keys(installation: Examined) -> tuple[Outcome, str, str]:
    """Whether those who are to call may."""
    auth = installation.config.auth
    if auth.mode is AuthMode.OPEN:
        return "warn", "auth.mode is open: everybody is an operator", "make keys by `kvquilt key create`"
    path = Path(auth.keys_file)
    if not path.exists():
        if auth.tokens.issuer:
            return ok(f"none; tokens of {auth.tokens.issuer}")
        return ok("none: callers of this machine alone are served")
    if path.stat().st_mode & 0o077:
        return "warn", f"others may use {path}", f"chmod 600 {path}"
    now = utc_now()
    valid = [record for record in read_keys(path).records if record.state(now) == "valid"]
    if not valid and not auth.tokens.issuer:
        return "fail", "no key is valid any more", "`kvquilt key create` makes one"
    ending = [record for record in valid if record.expires and record.expires - now < _SOON]
    if ending:
        names = ", ".join(record.name for record in ending[:3])
        return (
            "warn",
            f"{len(ending)} of {len(valid)} end within a week ({names})",
            "`kvquilt key create`, then revoke",
        )
    return ok(f"{len(valid)} valid")


def check_collector(installation: Examined) -> tuple[Outcome, str, str]:
    """That somebody listens where traces go; what he says is not asked."""
    tracing, environ = installation.config.tracing, installation.environ
    if not has_endpoint(tracing, environ):
        return ok("none is configured: spans are kept on this machine alone")
    endpoint = tracing.endpoint or next(environ[name] for name in ENDPOINTS if environ.get(name))
    where = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    port = where.port or _OTLP_PORTS.get(where.scheme, 4317)
    try:
        socket.create_connection((where.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        told = f"nobody answers at {where.hostname}:{port} ({error.strerror or type(error).__name__})"
        return "warn", told, "start the collector, or correct tracing.endpoint; requests do not wait for it"
    return ok(f"{where.hostname}:{port} listens")


def check_services(installation: Examined) -> tuple[Outcome, str, str]:
    state = installation.state
    if state is None:
        return ok("none runs on the data directory")
    unready = [service.service for service in installation.status() if not service.ready]
    if unready:
        return "fail", f"not ready: {', '.join(unready)}", "`kvquilt status` says why"
    return ok(f"all ready at {state.target}")


def _skew_s(endpoint: str, secure: bool, ca_file: str) -> float | None:
    """Measures how far the server's clock is from ours; None: it does not say."""
    context = trusting(ca_file) if secure else None
    with urllib3.PoolManager(timeout=_CONNECT_S, retries=False, ssl_context=context) as pool:
        try:
            answer = pool.request("HEAD", f"{'https' if secure else 'http'}://{endpoint}/")
        except urllib3.exceptions.HTTPError:
            return None
    told = email.utils.parsedate_to_datetime(answer.headers["date"]) if "date" in answer.headers else None
    return None if told is None else abs(told.timestamp() - time.time())
