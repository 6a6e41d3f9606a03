"""Makes spans of a generation: what the conventions for generative AI say of it, and below that what it went
through in the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path

from services.generator.planning import Plan
from shared.generation.told import BranchDoneEvent, DoneEvent, Event, StageTime
from shared.request import RequestContext
from shared.tracing import names
from shared.tracing.spans import Attributes, StageSpan, add_span, is_traced, traced_stream

GENERATING, EXPLORING, SELECTING = "chat", "explore", "select"


def generation_of(plan: Plan, model: str) -> Attributes:
    request, sampling = plan.request, plan.request.sampling
    return {
        names.OPERATION: "chat",
        names.PROVIDER: names.PROVIDER_NAME,
        names.REQUEST_MODEL: Path(model).name if Path(model).is_absolute() else model,
        names.MAX_TOKENS: sampling.limit,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.NUM_ANSWERS: sampling.n,
        names.REUSE: request.reuse.value,
        names.NUM_CHUNKS: len(request.chunks),
        names.NUM_QUESTIONS: len(request.questions),
    }


def traced_generation(
    ctx: RequestContext,
    plan: Plan,
    model: str,
    events: Callable[[RequestContext], AsyncGenerator[Event, None]],
) -> AsyncGenerator[Event, None]:
    """The events of a generation; where it is traced, as a stage."""

    async def stream(stage: StageSpan) -> AsyncGenerator[Event, None]:
        reasons: list[str] = []
        async with aclosing(events(stage.ctx)) as generated:
            async for event in generated:
                if isinstance(event, BranchDoneEvent):
                    reasons.append(event.finish_reason.value)
                elif isinstance(event, DoneEvent):
                    _tell(stage, event, reasons)
                yield event

    if not is_traced(ctx):
        return events(ctx)
    return traced_stream(ctx, GENERATING, generation_of(plan, model), stream=stream)


def add_stages(ctx: RequestContext, stages: Iterable[StageTime]) -> None:
    """Adds what the engine told, below the span of ``ctx``."""
    for stage in stages:
        counts = {f"kvquilt.{name}": value for name, value in stage.counts}
        add_stages(add_span(ctx, stage.name, stage.began_s, stage.ended_s, counts), stage.inner)


def _tell(stage: StageSpan, done: DoneEvent, reasons: list[str]) -> None:
    usage = done.usage
    stage.set(
        {
            names.FINISH_REASONS: reasons,
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.CACHED_TOKENS: usage.reused_tokens,
            names.OUTPUT_TOKENS: usage.generated_tokens,
            names.REUSE: usage.reuse.value if usage.reuse else "",
            names.FIRST_TOKEN_S: done.timings.first_token_s,
        }
    )
