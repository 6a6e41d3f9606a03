"""Translates a question on its way to a replica into what routing goes by. Nothing is tokenized: of texts
the tokens are estimated."""

from __future__ import annotations

from collections.abc import Sequence

from protos.kvquilt.v1 import generation_pb2
from shared.errors import InvalidRequest
from shared.generation.modes import GoesBy, ReuseMode
from shared.generation.orders import Reuse
from shared.routing.chains import KnownChains
from shared.routing.costs import RoutedQuestion, WantedChunk, chunk_key
from shared.wire.asked import reuse_of

_CHARACTERS_PER_TOKEN = 4
_DEFAULT_RATIO = 0.2


def routed_of(pb: generation_pb2.GenerateRequest, chains: KnownChains) -> RoutedQuestion:
    """Sums up what is computed wherever it goes, and the chunks whose KV may be elsewhere. Chunks whose
    identities the caller does not tell are told apart by what they are: nobody reports them as held, and the
    same ones go the same way. What the question tells of chains is added to ``chains``.

    Raises:
        InvalidRequest: it names a mode that there is not, or other identities than it has chunks.
    """
    reuse, lens = reuse_of(pb), [_num_tokens(chunk) for chunk in pb.chunks]
    computed = sum(map(_num_tokens, pb.questions))
    branches = max(1, len(pb.questions)) * max(1, pb.sampling.n, pb.decoding.beams.width)
    if isinstance(reuse.mode, ReuseMode) and not reuse.mode.row.stored:
        return RoutedQuestion((), computed + sum(lens), branches)
    keys = [chunk_key(name) for name in _names(pb)]
    for key, num_tokens, chunk in zip(keys, lens, pb.chunks, strict=True):
        chains.tell(key, num_tokens, chunk_key(chunk.parent_id) if chunk.parent_id else None)
    wanted = zip(keys, lens, strict=True)
    chunks = tuple(WantedChunk(key, num_tokens, chains.chain(key)) for key, num_tokens in wanted)
    return RoutedQuestion(chunks, computed + int(_share(reuse) * sum(lens)), branches)


def _names(pb: generation_pb2.GenerateRequest) -> Sequence[str]:
    if not pb.chunk_ids:
        return [chunk.SerializeToString(deterministic=True).hex() for chunk in pb.chunks]
    if len(pb.chunk_ids) != len(pb.chunks):
        raise InvalidRequest(f"chunk_ids: {len(pb.chunk_ids)} of {len(pb.chunks)} chunks; name all, or none")
    return pb.chunk_ids


def _num_tokens(piece: generation_pb2.Piece) -> int:
    return len(piece.token_ids.ids) or -(-len(piece.text) // _CHARACTERS_PER_TOKEN)


def _share(reuse: Reuse) -> float:
    """Of the chunks' tokens that are recomputed."""
    mode = reuse.mode
    by_ratio = isinstance(mode, ReuseMode) and mode.row.goes_by is GoesBy.RATIO
    if not by_ratio:
        return 0.0
    return _DEFAULT_RATIO if reuse.recompute.ratio is None else reuse.recompute.ratio
