"""Plans requests: pieces become ids, ids identities, and what is left out becomes what the service has by
default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.generator.config import GeneratorConfig
from services.generator.identified import Identified, Identities
from services.generator.reuse_modes import Modes, Reusing
from shared.engine.model.spec import ModelSpec
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams, total_len
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Piece
from shared.request import RequestContext


@dataclass(frozen=True, slots=True)
class Plan:
    """An order as the engine is asked for it."""

    order: GenerationOrder
    request: GenerateRequest
    reusing: Reusing


class Planner:
    """For one thread, as tokenizers are. ``has_text``: the model has a tokenizer."""

    def __init__(
        self,
        config: GeneratorConfig,
        spec: ModelSpec,
        identities: Identities,
        modes: Modes,
        has_text: bool,
    ) -> None:
        self._config, self._spec, self._has_text = config, spec, has_text
        self._identities, self._prompts, self._modes = identities, identities.prompts, modes

    def plan(self, ctx: RequestContext, order: GenerationOrder) -> Plan:
        """The engine's request for ``order``: everything is ids, every chunk has its identity, every default
        its value."""
        if len(order.questions) > self._config.max_questions:
            raise InvalidRequest(
                f"questions: {len(order.questions)} are more than the {self._config.max_questions} allowed"
            )
        if order.sampling.stop and not self._has_text:
            raise InvalidRequest(
                "sampling.stop: this model has no tokenizer, so its text is unknown; stop by token ids "
                "yourself"
            )
        prefix_ids, (chunks, links) = self.context(ctx, order.prefix, order.chunks)
        questions = self._prompts.questions(order.questions)
        prompt_len = len(prefix_ids) + total_len(chunks) + max(map(len, questions))
        reusing = self._modes.settle(
            order.reuse, prefix_ids, conditioned=conditioned(chunks), kv_context=order.kv_context
        )
        request = GenerateRequest(
            request_id=ctx.request_id,
            prefix_ids=prefix_ids,
            chunks=chunks,
            questions=questions,
            reuse=reusing.mode,
            recompute=reusing.recompute,
            ape=reusing.ape,
            sampling=self._sampling(order, prompt_len),
            beams=order.decoding.beams,
            choose=order.decoding.choose,
            links=links,
            adapter=reusing.adapter,
            idle=order.idle,
            conversation=order.conversation,
            tenant=ctx.tenant,
            asked_by=ctx.principal.name,
        )
        return Plan(order, request, reusing)

    def context(
        self, ctx: RequestContext, prefix: Piece | None, pieces: Sequence[Piece], chained: bool = False
    ) -> tuple[tuple[int, ...], Identified]:
        if len(pieces) > self._config.max_chunks:
            raise InvalidRequest(
                f"chunks: {len(pieces)} are more than the {self._config.max_chunks} allowed in one request"
            )
        prefix_ids = self._prompts.prefix(prefix)
        return prefix_ids, self._identities.of(ctx.tenant, prefix_ids, pieces, chained)

    def _sampling(self, order: GenerationOrder, prompt_len: int) -> SamplingParams:
        """As asked, else as configured. Beams have no stop strings, thoughts have paragraphs, and JSON ends
        where it is complete."""
        asked, decoding = order.sampling, order.decoding
        prose = decoding.beams is None and decoding.choose is None and asked.response_format is None
        plain = prose and self._has_text
        return replace(
            asked,
            max_tokens=self._max_tokens(asked.max_tokens, prompt_len),
            stop=asked.stop or (self._config.stop if plain else ()),
            stop_repeated=plain and self._config.stop_repeated and not asked.ignore_eos,
        )

    def _max_tokens(self, asked: int | None, prompt_len: int) -> int:
        """Refuses too much, here or in the engine; the default only takes the room there
        is."""
        spec, limit = self._spec, self._config.max_tokens_limit
        if asked is None:
            # the last is never fed back
            room = min(spec.max_positions, spec.sliding_window or spec.max_positions) - prompt_len + 1
            return max(1, min(self._config.max_tokens, room))
        if asked > limit:
            raise InvalidRequest(f"sampling.max_tokens: {asked} is more than the {limit} allowed")
        return asked


def conditioned(chunks: Sequence[Chunk]) -> bool | None:
    """Whether some are computed behind others of their documents; None: there are none."""
    return any(chunk.parent_id for chunk in chunks) if chunks else None
