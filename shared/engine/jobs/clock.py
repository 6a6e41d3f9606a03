"""The times at which a request arrived, was admitted, placed and answered, and its timings made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from shared.generation.told import Timings


@dataclass(slots=True)
class JobTimes:
    """Instants of ``time.monotonic()``; 0.0 where not reached."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    resident: float = 0.0
    decided: float = 0.0
    placed: float = 0.0
    first_token: float = 0.0
    last_first_token: float = 0.0

    def tick_resident(self) -> None:
        """All KV is there, and it is not decided yet what to compute anew."""
        self.resident = self.resident or time.monotonic()

    def tick_first_token(self) -> None:
        self.last_first_token = time.monotonic()
        self.first_token = self.first_token or self.last_first_token

    def timings(self, now: float) -> Timings:
        select_wait_s = self.decided - self.resident if self.resident else 0.0
        return Timings(
            queue_s=self.admitted - self.arrived,
            load_s=self.placed - self.admitted - select_wait_s,
            prefill_s=self.last_first_token - self.placed,
            first_token_s=self.first_token - self.arrived,
            decode_s=now - self.first_token,
            total_s=now - self.arrived,
            engine_ttft_s=self.first_token - self.placed,
            select_wait_s=select_wait_s,
        )
