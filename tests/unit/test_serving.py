"""What a service has loaded before it serves."""

from __future__ import annotations

import gc

import pytest

from shared.errors import ConfigError
from shared.serving import load_or_error


def test_no_collection_of_garbage_looks_through_what_was_loaded() -> None:
    try:
        assert load_or_error(lambda: {"weights": [1]}, "nothing is served") == {"weights": [1]}
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 10_000
    finally:
        gc.unfreeze()


def test_what_cannot_be_loaded_is_said_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> None:
        raise ConfigError("model: there is none")

    error = load_or_error(load, "nothing is served")
    assert isinstance(error, ConfigError)
    assert "nothing is served: model: there is none" in caplog.text
