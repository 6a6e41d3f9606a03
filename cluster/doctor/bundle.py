"""Packs what an investigation needs into one file, without documents, questions, answers and secrets."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import urllib3

from cluster.config import TRACES
from cluster.doctor.diagnosis import Diagnosis, Examined
from cluster.doctor.scrubbing import Scrubber, secrets_in, secrets_of
from cluster.doctor.software import installed_versions
from services.kv_store.s3.credentials import credentials_from
from shared.config import to_dict
from shared.errors import KvquiltError
from shared.private_files import open_private
from shared.tracing import names
from shared.tracing.kept import kept_spans

_MOST_LINES, _MOST_SPANS, _MOST_METRIC_BYTES = 5_000, 5_000, 4 << 20
_METRICS_S = 5.0
_ROOT = "kvquilt-doctor"
_ABOUT = """What `kvquilt doctor --bundle` found on {when}. It holds no documents, questions, answers or keys:

versions.json   Python, platform, and every installed package
settings.json   the settings in force; secrets and texts are told by nothing but that they are there
doctor.json     the checks
status.json     what every service says of itself, if a stack runs
metrics.txt     what it counts
traces.jsonl    the latest spans, without content
logs/           the last lines of the logs, without what stood in quotation marks and lines of other programs
"""
_CONTENT = (names.QUERY_TEXT, names.RETRIEVED_DOCUMENTS, names.INPUT_MESSAGES, names.OUTPUT_MESSAGES)


def write_bundle(path: Path, installation: Examined, findings: Sequence[Diagnosis]) -> list[str]:
    """Writes ``path``, for its owner alone; returns the names of what is in it.

    Raises:
        OSError: it cannot be written.
    """
    written = []
    with open(path, "wb", opener=open_private) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, text in parts_of(installation, findings):
            data = text.encode()
            member = tarfile.TarInfo(f"{_ROOT}/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            tar.addfile(member, io.BytesIO(data))
            written.append(name)
    return written


def parts_of(installation: Examined, findings: Sequence[Diagnosis]) -> Iterator[tuple[str, str]]:
    """Names and texts. What cannot be had is left out, as a stack that does not answer is what is
    investigated."""
    scrubber = Scrubber(known_secrets(installation))
    yield "README.txt", _ABOUT.format(when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    yield "versions.json", _json(installed_versions())
    yield "settings.json", _json(scrubber.settings(to_dict(installation.config)))
    yield "doctor.json", _json(scrubber.values([dataclasses.asdict(finding) for finding in findings]))
    if installation.state is not None:
        if status := _status(installation):
            yield "status.json", _json(scrubber.values(status))
        if installation.state.http and (metrics := _metrics(installation.state.http)):
            yield "metrics.txt", metrics
    if spans := _spans(installation.data_dir / TRACES):
        yield "traces.jsonl", "".join(f"{json.dumps(span)}\n" for span in scrubber.values(spans))
    for log in sorted((installation.data_dir / "logs").glob("*.log")):
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = scrubber.log(deque(file, _MOST_LINES))
            yield f"logs/{log.name}", "".join(f"{line}\n" for line in lines)


def known_secrets(installation: Examined) -> list[str]:
    """Of the environment, the settings and the object store's keys."""
    found = [*secrets_of(installation.environ), *secrets_in(to_dict(installation.config))]
    objects = installation.config.kv_store.objects
    if objects.endpoint:
        try:
            keys = credentials_from(objects.credentials_file).retrieve()
        except (KvquiltError, OSError):
            return found
        found += filter(None, (keys.access_key, keys.secret_key, keys.session_token))
    return found


def _status(installation: Examined) -> list[dict[str, Any]]:
    try:
        return [dataclasses.asdict(service) for service in installation.status()]
    except KvquiltError as error:
        return [{"service": "gateway", "ready": False, "detail": error.detail}]


def _metrics(http: str) -> str:
    """Numbers, and the names of what they count; empty where nobody tells them."""
    with urllib3.PoolManager(timeout=_METRICS_S, retries=False) as pool:
        try:
            answer = pool.request("GET", f"{http}/metrics")
        except urllib3.exceptions.HTTPError:
            return ""
    return answer.data[:_MOST_METRIC_BYTES].decode(errors="replace") if answer.status == 200 else ""


def _spans(directory: Path) -> list[dict[str, Any]]:
    found = deque(sorted(kept_spans(directory), key=lambda span: span.began_ns), _MOST_SPANS)
    return [
        dataclasses.asdict(span)
        | {"attributes": {k: v for k, v in span.attributes.items() if k not in _CONTENT}}
        for span in found
    ]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
