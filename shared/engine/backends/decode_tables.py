"""Tables of a step in which every branch decodes one token, carried over to the next such step instead of
being built anew, which takes several times as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.engine.attention import Lane
from shared.engine.backends.tables import Int64, Tables
from shared.engine.kv.branch import Branch


@dataclass(slots=True)
class DecodeTables:
    """``tables`` of a step of B lanes with one row each. Where the same branches come with their next token
    and see the same, every row stands one position further and sees one more token of its own segment, and
    that is all. ``_num_positions``: as in ``Tables``, of the step that they are of now.

    It keeps no KV alive: of segments it holds their lists of addresses, by which it knows them again.
    """

    tables: Tables
    _num_positions: int
    _most_positions: int
    _sights: list[object]
    _held: list[object]  # what ``_sights`` names by id, so that nothing else comes to have it
    _places_B2: list[tuple[int, int]]
    _growing: Int64  # items that end where a row's own tokens do

    @classmethod
    def of(cls, lanes: Sequence[Lane], tables: Tables, most_positions: int) -> DecodeTables | None:
        """``most_positions``: that there are angles for. None: the next step's tables differ otherwise,
        because a branch has several rows, or stands so far in front that it does not see a piece as a whole.
        """
        if any(lane.num_rows > 1 for lane in lanes):
            return None
        branches = [lane.branch for lane in lanes]
        seen = [placement for branch in branches for placement in branch.seen()]
        if tables.looks_N5[: -len(lanes), 2].sum() != sum(placement.num_tokens for placement in seen):
            return None
        own_P = np.zeros(len(tables.pieces_P3), np.int32)
        own_P[-len(lanes) :] = tables.looks_N5[-len(lanes) :, 2]
        held = [(placement.segment.addresses(), placement.excluded) for placement in seen]
        return cls(
            replace(tables, pieces=()),
            tables.num_positions,
            most_positions,
            [_sight(branch) for branch in branches],
            [*held, *(branch.segment.addresses() for branch in branches)],
            [_place(branch) for branch in branches],
            np.flatnonzero(tables.items_I4[:, 3] == own_P[tables.items_I4[:, 0]]),
        )

    def advance(self, lanes: Sequence[Lane]) -> bool:
        """Makes these the tables of this step. False: they cannot be, and are what they were."""
        places_B2 = [_place(lane.branch) for lane in lanes]
        if any(lane.num_rows > 1 for lane in lanes) or places_B2 != [
            (length + 1, place + 1) for length, place in self._places_B2
        ]:
            return False
        # a split of its own tokens is full: another one begins, and longer ones may do from here on
        if any(length % self.tables.tiling.split_len == 0 for length, _ in places_B2):
            return False
        if self._num_positions == self._most_positions:
            return False
        if [_sight(lane.branch) for lane in lanes] != self._sights:
            return False
        tables = self.tables
        tables.looks_N5[:, 1] += 1
        tables.looks_N5[-len(lanes) :, 2] += 1
        tables.items_I4[self._growing, 3] += 1
        tables.own_R3[:, 1:] += 1
        self._num_positions += 1
        self._places_B2 = places_B2
        return True


def _place(branch: Branch) -> tuple[int, int]:
    """Of its next token: which of its segment it is, and its local position there."""
    return branch.segment.length, branch.segment.place(branch.segment.length)


def _sight(branch: Branch) -> object:
    """What its rows see and how, wherever they stand. Segments go by their lists of addresses: other buffers
    have another list."""
    seen = [
        (id(one.segment.addresses()), branch.offset - one.offset, one.num_tokens, id(one.excluded))
        for one in branch.seen()
    ]
    return id(branch.segment.addresses()), branch.tempering, seen
