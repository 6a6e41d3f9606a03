"""What a support bundle shows of settings and logs: no secret, nothing that anybody said, and the rest."""

from __future__ import annotations

import json

import pytest

from cluster.doctor.scrubbing import REMOVED, Scrubber, secrets_in, secrets_of

SAID = "Orla Venn signed the lease"
AT = "2026-11-23T07:00:00.123Z"
PLAIN = Scrubber()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"{AT} INFO    gateway: ready", f"{AT} INFO    gateway: ready"),
        (
            f"{AT} INFO    gateway: Answer failed: question '{SAID}' is empty tenant=acme",
            f"{AT} INFO    gateway: Answer failed: question '…' is empty tenant=acme",
        ),
        (
            f"(gateway pid=7) {AT} WARNING kv_store: password: hunter2 refused",
            f"(gateway pid=7) {AT} WARNING kv_store: password={REMOVED} refused",
        ),
        (
            f"{AT} INFO    kv_store: GET https://store/bucket?X-Amz-Signature=abcdef",
            f"{AT} INFO    kv_store: GET [url]",
        ),
        (
            f"{AT} INFO    gateway: authorization Bearer kvq_abc.def",
            f"{AT} INFO    gateway: authorization Bearer {REMOVED}",
        ),
        ('  File "/app/services/x.py", line 7, in answer', '  File "/app/services/x.py", line 7, in answer'),
        (f"ValueError: {SAID}", "ValueError"),
        (f"shared.errors.NotFound: {SAID}", "shared.errors.NotFound"),
    ],
)  # fmt: skip
def test_lines_of_ours_are_shown_without_what_may_be_content(line: str, shown: str) -> None:
    assert list(PLAIN.log([line])) == [shown]


def test_lines_of_no_known_form_are_counted_and_left_out() -> None:
    lines = [SAID, f"    raise ValueError('{SAID}')", "2026-11-23T07:00:00Z INFO gateway: ready", SAID]
    assert list(PLAIN.log(lines)) == [
        "[2 lines left out]",
        "2026-11-23T07:00:00Z INFO gateway: ready",
        "[1 lines left out]",
    ]


def test_of_json_lines_known_fields_and_numbers_stay() -> None:
    line = {
        "time": "2026-11-23T07:00:00.123Z",
        "level": "ERROR",
        "service": "gateway",
        "message": f"unexpected error in '{SAID}'",
        "request_id": "r1",
        "trace_id": "ab" * 16,
        "took_ms": 1.5,
        "text": SAID,
        "error": f'Traceback:\n  File "a.py", line 1, in b\n    {SAID}\nKeyError: {SAID}',
    }
    (shown,) = PLAIN.log([json.dumps(line)])
    told = json.loads(shown)
    assert "Orla" not in shown
    assert (told["request_id"], told["trace_id"], told["took_ms"]) == ("r1", "ab" * 16, 1.5)
    assert 'File "a.py", line 1, in b' in told["error"]
    assert "KeyError" in told["error"]


def test_a_known_secret_is_removed_wherever_it_stands() -> None:
    scrubber = Scrubber(["s3cr3t-value", "abc"])  # what is that short would be found everywhere
    assert scrubber.line("x s3cr3t-value y abc") == f"x {REMOVED} y abc"
    assert scrubber.values({"facts": ["s3cr3t-value", 7]}) == {"facts": [REMOVED, 7]}


def test_settings_tell_of_secrets_and_texts_only_that_they_are_there() -> None:
    settings = {
        "retrieval": {"milvus_token": "root:pass", "milvus_uri": "https://root:pass@milvus:19530/?a=b"},
        "prompt": {"system": SAID, "template": "auto"},
        "generator": {"max_tokens": 256, "stop": [SAID]},
        "kv_store": {"objects": {"credentials_file": ""}},
    }
    assert PLAIN.settings(settings) == {
        "retrieval": {"milvus_token": REMOVED, "milvus_uri": "https://milvus:19530/"},
        "prompt": {"system": f"[{len(SAID)} characters]", "template": "auto"},
        "generator": {"max_tokens": 256, "stop": [f"[{len(SAID)} characters]"]},
        "kv_store": {"objects": {"credentials_file": ""}},
    }


def test_secrets_are_known_by_the_names_of_what_holds_them() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "a", "HF_TOKEN": "b", "PATH": "c", "OTEL_EXPORTER_OTLP_HEADERS": "d"}
    assert secrets_of(environ) == ["a", "b", "d"]
    assert list(secrets_in({"retrieval": {"milvus_token": "t", "k": 8}, "model": "m"})) == ["t"]
