"""What a request over a context took, in tokens."""

from __future__ import annotations

from collections.abc import Collection

from shared.generation.asked import GenerateRequest
from shared.generation.told import Usage


def usage_of(
    request: GenerateRequest,
    selected: Collection[int],
    lost: Collection[str],
    loaded_tokens: int,
    generated_tokens: int,
    num_blended: int | None,
) -> Usage:
    """``lost``: identities of chunks that were stored nowhere; the rest as in ``ContextJob``."""
    context = sum(len(chunk.token_ids) for chunk in request.chunks)
    questions = sum(map(len, request.questions))
    lost_places = _places(request, lost)
    if not request.reuse.row.stored:
        recomputed = context
    elif num_blended is not None:
        recomputed = min(context, len(lost_places) + num_blended)
    else:
        recomputed = len(lost_places | set(selected))
    prompt, recomputed = len(request.prefix_ids) + context + questions, recomputed + questions
    chosen = len(selected) if num_blended is None else num_blended
    return Usage(prompt, prompt - recomputed, recomputed, generated_tokens, loaded_tokens, chosen)


def _places(request: GenerateRequest, lost: Collection[str]) -> set[int]:
    """Tokens of the context that had to be recomputed because they were stored nowhere; a chunk's where it
    stands first."""
    places: set[int] = set()
    seen: set[str] = set()
    start = 0
    for chunk in request.chunks:
        if chunk.chunk_id in lost and chunk.chunk_id not in seen:
            places.update(range(start, start + len(chunk.token_ids)))
        seen.add(chunk.chunk_id)
        start += len(chunk.token_ids)
    return places
