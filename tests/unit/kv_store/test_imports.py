from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("shared.kv_format", ["torch", "ray", "grpc", "google.protobuf"]),
        (
            "services.kv_store.handlers, services.kv_store.node.agent, services.kv_store.node.cluster_store",
            ["torch", "ray"],
        ),
        ("services.kv_store.app", ["torch", "transformers"]),
    ],
)
def test_the_store_does_not_load_what_it_does_not_need(modules: str, unwanted: list[str]) -> None:
    program = f"import sys; import {modules}; print([m for m in {unwanted!r} if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
