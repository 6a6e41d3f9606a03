"""Settings of the ``kv_store`` application."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from services.kv_store.documents.quotas import QuotaConfig
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.s3.settings import ObjectSettings
from services.kv_store.tiers.memory_directory import memory_directory
from shared.audit import AuditConfig
from shared.config import check_above_zero, check_least
from shared.deployment import DeploymentConfig
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig
from shared.sharing import SharingScopes


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The tier in shared memory. ``directory`` empty: one below /dev/shm that is named after the node's data
    directory. ``capacity_bytes`` None: at most 2 GiB and at most a quarter of what is free there; 0: no such
    tier."""

    directory: str = ""
    capacity_bytes: int | None = None

    def path_for(self, data_directory: Path) -> Path:
        return Path(self.directory) if self.directory else memory_directory(data_directory)

    def __post_init__(self) -> None:
        if self.directory and not Path(self.directory).is_absolute():
            raise ValueError(f"directory: must be an absolute path, got {self.directory!r}")
        check_least(self, 0, "capacity_bytes")


@dataclass(frozen=True, slots=True)
class GarbageConfig:
    """Every ``period_s`` seconds (0: never) chunks go that no document refers to, that nobody reads, and that
    were stored at least ``grace_s`` ago. KV of an ingestion that was interrupted longer ago than that is
    computed again."""

    period_s: float = 3600.0
    grace_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        check_least(self, 0, "period_s", "grace_s")


@dataclass(frozen=True, slots=True)
class KvStoreConfig:
    """``directory`` is used on every node, each with its own disk; where nodes share one (a test cluster on
    one machine), the environment variable ``KVQUILT_KV_STORE__DIRECTORY`` of a node overrides it there.
    ``host``: the address on which agents listen; empty means their node's own. ``objects``: the object store
    that holds everything, if its endpoint is given. ``disk_capacity_bytes`` 0: as much as fits. ``lease_s``:
    how long a chunk stays in its tier after somebody was told where it is. ``resident_floor``: the share of a
    node's memory tier, and of its disk tier, that stays a tenant's when others need room for copies: what he
    used last, as far as that fits; all floors together take half at most. ``prefer_peers``: fetch from other
    nodes before the object store. ``stale_staging_s``: staged files that did not change for so long belong to
    nobody any more. ``limits``: of requests, ``auth``: who may make them, ``sharing_scopes``: which tenants
    share KV; filled in from what is shared."""

    directory: str
    host: str = ""
    objects: ObjectSettings = field(default_factory=ObjectSettings)
    disk_capacity_bytes: int = 0
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    fetch: FetchConfig = field(default_factory=FetchConfig)
    prefer_peers: bool = False
    lease_s: float = 60.0
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    garbage: GarbageConfig = field(default_factory=GarbageConfig)
    resident_floor: float = 0.1
    reconcile_s: float = 2.0
    stale_staging_s: float = 3600.0
    sharing_scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not Path(self.directory).is_absolute():
            raise ValueError(f"directory: must be an absolute path, got {self.directory!r}")
        SharingScopes(self.sharing_scopes)
        check_above_zero(self, "reconcile_s")
        check_least(self, 0, "disk_capacity_bytes", "lease_s", "stale_staging_s")
        if not 0 <= self.resident_floor <= 1:  # False for NaN
            raise ValueError(f"resident_floor: must be from 0 to 1, got {self.resident_floor}")
