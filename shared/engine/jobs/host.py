"""The engine, as far as requests over a context know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.engine.decoding.drafting import Drafter
from shared.engine.decoding.grammar import GrammarState
from shared.engine.decoding.grammars import Grammars
from shared.engine.decoding.text import Decode, Growth, TextStream
from shared.engine.kv.conversations import Conversations
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
    grammars: Grammars
    conversations: Conversations
    adapters: Mapping[str, AdapterWeights] = field(default_factory=dict)

    def eos_ids(self, params: SamplingParams) -> frozenset[int]:
        return frozenset() if params.ignore_eos else self.spec.eos_ids

    def grammar(self, params: SamplingParams) -> GrammarState | None:
        """Of a text that begins.

        Raises:
            KvquiltError: see ``Grammars.of``; not of what was compiled when the request came.
        """
        form = params.response_format
        return None if form is None else self.grammars.of(form).begin()

    def growth(
        self, params: SamplingParams, grammar: GrammarState | None, drafter: Drafter | None = None
    ) -> Growth:
        text = TextStream(self.decode, params.stop, params.stop_repeated)
        return Growth(params, text, self.eos_ids(params), drafter, grammar=grammar)
