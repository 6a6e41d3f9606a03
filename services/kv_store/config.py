"""Settings of the ``kv_store`` application."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shared.deployment import DeploymentConfig


@dataclass(frozen=True, slots=True)
class KvStoreConfig:
    """``directory`` is used on every node, each with its own disk; where nodes share one (a test cluster on one machine), the
    environment variable ``KVQUILT_KV_STORE__DIRECTORY`` of a node overrides it there. ``host``: the address on which agents
    listen; empty means their node's own. ``stale_staging_s``: staged files of this age belong to nobody any more."""

    directory: str
    host: str = ""
    reconcile_s: float = 2.0
    stale_staging_s: float = 3600.0
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not Path(self.directory).is_absolute():
            raise ValueError(f"directory: must be an absolute path, got {self.directory!r}")
        if self.reconcile_s <= 0:
            raise ValueError(f"reconcile_s: must be above 0, got {self.reconcile_s}")
        if self.stale_staging_s < 0:
            raise ValueError(f"stale_staging_s: must not be negative, got {self.stale_staging_s}")
