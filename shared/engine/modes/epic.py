"""``epic``: the first tokens of every chunk but the first."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.modes.policy import Policy
from shared.engine.modes.token_selection import num_selected
from shared.generation.asked import GenerateRequest


class FirstOfChunks(Policy):
    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...]:
        lens = [len(chunk.token_ids) for chunk in request.chunks]
        return first_of_chunks(lens, num_selected(request.recompute.ratio, sum(lens)))


def first_of_chunks(chunk_lens: Sequence[int], count: int) -> tuple[int, ...]:
    """As many tokens at the beginning of every chunk but the first, and one more of the first ones of
    them if they do not come out even. When those chunks are used up, the first one's."""
    starts = [sum(chunk_lens[:i]) for i in range(len(chunk_lens))]
    later = sorted(
        (j, start + j)
        for start, length in list(zip(starts, chunk_lens, strict=True))[1:]
        for j in range(length)
    )
    in_turn = [token for _, token in later] + list(range(chunk_lens[0] if chunk_lens else 0))
    return tuple(sorted(in_turn[:count]))


POLICY = FirstOfChunks()
