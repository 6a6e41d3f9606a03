"""Names the places of things. Imports nothing heavy: every command needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[1]
DEMO_ASSETS = PROJECT_ROOT / "cluster" / "demo_assets"
DEMO_MODEL = DEMO_ASSETS / "model"


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """``KVQUILT_DATA_DIR``, else the user's data directory."""
    if chosen := environ.get("KVQUILT_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kvquilt"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Directory of what can be made or downloaded again: converted and pulled models."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvquilt"
