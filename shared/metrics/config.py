"""Settings of metrics: where they are shown, and how much of whose they tell."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import check_least

MOST_TENANTS = 1000


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """
    port: where every node shows the metrics of its processes, at `/metrics`, beside the gateway's HTTP port;
    nobody is asked who he is there. 0: no such port.
    host: the address on which it listens.
    tenants: how many tenants are told apart by a label, the first ones that ask; the rest are `other`. Their
    names are then readable where metrics are. 0: no such label.
    model_name: a label of every series; filled in from `model`.
    vllm_names: metrics that vLLM has too are told by its names (`vllm:…`) as well.
    """

    port: int = 0
    host: str = "127.0.0.1"
    model_name: str = ""
    tenants: int = 0
    vllm_names: bool = False

    def __post_init__(self) -> None:
        check_least(self, 0, "port", "tenants")
        if self.port > 65535:
            raise ValueError(f"port: must be 0 to 65535, got {self.port}")
        if self.tenants > MOST_TENANTS:
            raise ValueError(
                f"tenants: at most {MOST_TENANTS} (each is a series of its own), got {self.tenants}"
            )
