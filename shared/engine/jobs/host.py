"""The engine, as far as requests over a context know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.engine.decoding.drafting import Drafter
from shared.engine.decoding.text import Decode, Growth, TextStream
from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.engine_config import EngineConfig
from shared.generation.asked import SamplingParams


@dataclass(frozen=True, slots=True)
class Host:
    """``decode``: see ``Engine``; ``adapters``: by name."""

    spec: ModelSpec
    config: EngineConfig
    decode: Decode | None
    rotation: Rotation
    adapters: Mapping[str, AdapterWeights] = field(default_factory=dict)

    def eos_ids(self, params: SamplingParams) -> frozenset[int]:
        return frozenset() if params.ignore_eos else self.spec.eos_ids

    def growth(self, params: SamplingParams, drafter: Drafter | None = None) -> Growth:
        text = TextStream(self.decode, params.stop, params.stop_repeated)
        return Growth(params, text, self.eos_ids(params), drafter)
