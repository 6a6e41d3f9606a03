"""Settings by which an application is scaled, logs and is traced: the same section, ``deployment``, in every
service's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared.config import check_least
from shared.log import LogConfig
from shared.metrics.config import MetricsConfig
from shared.scaling import ScalingConfig, policy_of
from shared.tracing.config import TracingConfig

LOOK_BACK_S = 15.0
"""Autoscaling goes by means over so long; replicas tell Serve every 10 s."""


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """
    num_replicas: processes that serve at the start; max_replicas above it turns autoscaling between the two
    on, from 0 on if this is 0: then the first caller waits for a replica.
    max_ongoing_requests, max_queued_requests: per replica; what exceeds both is refused as overloaded. A
    replica knows whose requests are, and until when they matter; a queue in front of it does not: so the
    first is to be far above what it works on at once.
    target_ongoing_requests: load per replica that autoscaling aims at; generators and selectors go by
    `scaling` instead.
    upscale_delay_s, downscale_delay_s: for how long more, or fewer, replicas must be wanted before they are
    there.
    num_cpus, num_gpus, resources: what Ray reserves per replica; 0 CPUs lets everything fit on a small
    machine.
    memory_bytes: what Ray reserves per replica, and what requests under way may take by estimate; more of
    them are refused as overloaded. 0: nothing is reserved, and they may take a quarter of what the machine or
    the container has.
    drain_s: how long a replica that is asked to stop may finish its requests.
    scale_down_s: how long one that autoscaling takes away may, where that is longer: as long as the longest
    answer.
    log: level and format, where this service differs from the shared setting.
    metrics: filled in from the shared section.
    tracing: likewise.
    """

    num_replicas: int = 1
    max_replicas: int = 0
    max_ongoing_requests: int = 512
    max_queued_requests: int = 256
    target_ongoing_requests: int = 8
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    drain_s: float = 20.0
    scale_down_s: float = 600.0
    log: LogConfig = field(default_factory=LogConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)

    def __post_init__(self) -> None:
        check_least(self, 1, "max_ongoing_requests", "target_ongoing_requests")
        check_least(self, 0, "num_replicas", "num_cpus", "num_gpus", "memory_bytes")
        check_least(self, 0, "upscale_delay_s", "downscale_delay_s", "drain_s", "scale_down_s")
        if not self.num_replicas and not self.max_replicas:
            raise ValueError("num_replicas: 0 needs a max_replicas to scale up to; set that, or at least 1")
        if self.max_replicas and self.max_replicas < self.num_replicas:
            raise ValueError(
                f"max_replicas: must be 0 or at least num_replicas ({self.num_replicas}), got "
                f"{self.max_replicas}"
            )

    @property
    def autoscales(self) -> bool:
        return self.max_replicas > self.num_replicas

    def serve_options(self, scaling: ScalingConfig | None = None) -> dict[str, Any]:
        """Keyword arguments of ``ray.serve.deployment``. ``scaling``: of a service that computes."""
        options: dict[str, Any] = {
            "max_ongoing_requests": self.max_ongoing_requests,
            "max_queued_requests": self.max_queued_requests,
            "graceful_shutdown_timeout_s": self.drain_s,
            "ray_actor_options": {
                "num_cpus": self.num_cpus,
                "num_gpus": self.num_gpus,
                "resources": self.resources,
                **({"memory": self.memory_bytes} if self.memory_bytes else {}),
            },
        }
        if not self.autoscales:
            return options | {"num_replicas": self.num_replicas}
        return options | {
            "graceful_shutdown_timeout_s": max(self.drain_s, self.scale_down_s),
            "autoscaling_config": {
                "min_replicas": self.num_replicas,
                "max_replicas": self.max_replicas,
                "target_ongoing_requests": self.target_ongoing_requests,
                "look_back_period_s": LOOK_BACK_S,
                "upscale_delay_s": self.upscale_delay_s,
                "downscale_delay_s": self.downscale_delay_s,
                **({"policy": policy_of(scaling)} if scaling else {}),
            },
        }


def serve_options(section: Any) -> dict[str, Any]:
    """Keyword arguments of ``ray.serve.deployment``, of a service's section. Those that compute have
    ``scaling`` in it."""
    deployment: DeploymentConfig = section.deployment
    return deployment.serve_options(getattr(section, "scaling", None))
