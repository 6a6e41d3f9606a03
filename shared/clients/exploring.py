"""Live forests over gRPC: the commands that a caller gives and what it is told. The proto says what they
mean. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from protos.kvquilt.v1 import generation_pb2
from shared.clients.generation import (
    FINISH,
    ChunkRef,
    FinishReason,
    GenerationDone,
    Piece,
    Reuse,
    Sampling,
    chunk_to_pb,
    done_of,
    optional_to_pb,
    piece_to_pb,
    reuse_to_pb,
    sampling_to_pb,
)
from shared.clients.health import meta_of
from shared.clients.recompute import Ape, Recompute, Selected, ape_to_pb, recompute_to_pb, selected_of
from shared.clients.transport import ClientStreaming
from shared.errors import KvquiltError, Unavailable
from shared.request import RequestContext
from shared.status import from_code


@dataclass(frozen=True, slots=True)
class Start:
    branch: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Fork:
    """``length`` None: all tokens that the source has."""

    branch: int
    source: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    branch: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Prune:
    branch: int


@dataclass(frozen=True, slots=True)
class Append:
    branch: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Grow:
    branch: int
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Merge:
    """``length`` None: as many tokens as all sources begin with. ``placed``: an approximation."""

    branch: int
    sources: tuple[int, ...]
    length: int | None = None
    placed: bool = False


ForestCommand = Start | Fork | Rewind | Prune | Append | Grow | Merge


@dataclass(frozen=True, slots=True)
class Applied:
    """``approximate``: the branch holds KV that a merge placed as it was."""

    command: int
    num_tokens: int
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The forest is as it was; ``error`` names the field."""

    command: int
    error: KvquiltError


@dataclass(frozen=True, slots=True)
class Grown:
    branch: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Rested:
    branch: int
    finish_reason: FinishReason
    text: str
    num_tokens: int


ForestEvent = Selected | Applied | Refused | Grown | Rested


class ForestClient:
    """Its transport streams requests: gRPC does, a Serve handle cannot."""

    def __init__(self, transport: ClientStreaming) -> None:
        self._transport = transport

    async def explore(
        self,
        ctx: RequestContext,
        chunks: Sequence[ChunkRef | Piece],
        commands: AsyncIterator[ForestCommand],
        reuse: Reuse | None = None,
        prefix: Piece | None = None,
        recompute: Recompute | None = None,
        ape: Ape | None = None,
    ) -> AsyncGenerator[ForestEvent | GenerationDone, None]:
        """A live forest that obeys ``commands`` and is closed when they end; the last value is
        ``GenerationDone``.

        Raises:
            Unavailable: the stream ended without it.
        """
        opened = generation_pb2.ForestOpen(
            meta=meta_of(ctx),
            prefix=optional_to_pb(prefix),
            chunks=map(chunk_to_pb, chunks),
            reuse=reuse_to_pb(reuse),
            recompute=recompute_to_pb(recompute),
            ape=ape_to_pb(ape),
        )

        async def requests() -> AsyncIterator[generation_pb2.ExploreRequest]:
            yield generation_pb2.ExploreRequest(open=opened)
            async for command in commands:
                yield command_to_pb(command)

        stream = self._transport.both_streams(
            "Explore", requests(), generation_pb2.ExploreResponse, ctx.remaining_s
        )
        async with aclosing(stream):
            async for pb in stream:
                if pb.HasField("done"):
                    yield done_of(pb.done)
                    return
                yield event_of(pb)
        raise Unavailable("the generator ended the forest before it was closed; retry")


def command_to_pb(command: ForestCommand) -> generation_pb2.ExploreRequest:
    match command:
        case Start(branch, piece):
            return generation_pb2.ExploreRequest(
                start=generation_pb2.ForestStart(branch=branch, piece=piece_to_pb(piece))
            )
        case Fork(branch, source, length):
            return generation_pb2.ExploreRequest(
                fork=generation_pb2.ForestFork(branch=branch, source=source, length=length)
            )
        case Rewind(branch, num_tokens):
            return generation_pb2.ExploreRequest(
                rewind=generation_pb2.ForestRewind(branch=branch, num_tokens=num_tokens)
            )
        case Prune(branch):
            return generation_pb2.ExploreRequest(prune=generation_pb2.ForestPrune(branch=branch))
        case Append(branch, piece):
            return generation_pb2.ExploreRequest(
                append=generation_pb2.ForestAppend(branch=branch, piece=piece_to_pb(piece))
            )
        case Grow(branch, sampling):
            return generation_pb2.ExploreRequest(
                grow=generation_pb2.ForestGrow(branch=branch, sampling=sampling_to_pb(sampling))
            )
        case Merge(branch, sources, length, placed):
            merge = generation_pb2.ForestMerge(branch=branch, sources=sources, length=length, placed=placed)
            return generation_pb2.ExploreRequest(merge=merge)


def event_of(pb: generation_pb2.ExploreResponse) -> ForestEvent:
    """Of every response but ``done``."""
    match pb.WhichOneof("event"):
        case "selected":
            return selected_of(pb.selected)
        case "applied":
            return Applied(pb.applied.command, pb.applied.num_tokens, pb.applied.approximate)
        case "refused":
            return Refused(pb.refused.command, from_code(pb.refused.code, pb.refused.detail))
        case "grown":
            top = tuple((t.token_id, t.logprob) for t in pb.grown.top_logprobs)
            return Grown(pb.grown.branch, pb.grown.token_id, pb.grown.text, pb.grown.logprob, top)
        case _:
            return Rested(
                pb.rested.branch, FINISH[pb.rested.finish_reason], pb.rested.text, pb.rested.num_tokens
            )
