"""A step's pieces as the tables of numbers that the Triton kernels read. Pure numpy, nothing of it depends on
a device.

A query row of the step, times the query heads of a kv head's group, makes a piece's *flat rows*; a *tile* is
``block_rows`` of them. Keys are cut into *splits* of ``split_len``. An *item*, the work of one program, is a
tile of a piece and a split of its keys; for every row in it, it fills one *slot* with a partial output. A
row's slots lie side by side, in the order of its own path and of the splits, so that merging them adds up in
an order which no company can change::

    slots   | row 0: piece a split 0 | piece a split 1 | own split 0 | row 1: ...
    first_slot[0]                                       first_slot[1]

The slots of the chunks that a row weighs by a tempering lie side by side, too (``joint``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.engine.attention import Lane, Piece, Visit, pieces_of
from shared.engine.model.spec import ModelSpec

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Float32: TypeAlias = NDArray[np.float32]
NumberT = TypeVar("NumberT", np.int32, np.int64, np.float32)
_SPLIT_LENS = (256, 512, 1024, 2048, 4096, 8192)
BLOCK_KEYS = 64  # that a program takes at a time
_MANY_FLAT_ROWS = 2048  # from here on tiles may be higher
_NOBODY = 1 << 30  # a flat row that no piece has
LOG2_E = math.log2(math.e)  # kernels take powers of 2


@dataclass(frozen=True, slots=True)
class Tiling:
    """``block_rows`` flat rows and ``split_len`` keys (a multiple of ``BLOCK_KEYS``) make an item. ``alike``:
    a program takes all keys in the same way, so that no row's bits depend on its company."""

    block_rows: int
    split_len: int
    alike: bool = False


FIXED = Tiling(64, 512, alike=True)


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Numbers of what tables list."""

    num_rows: int
    num_items: int
    num_looks: int
    num_slots: int
    num_pieces: int


@dataclass(frozen=True, slots=True)
class Tables:
    """Columns: items (piece, first flat row, first key, end of keys) · pieces (first look, looks, capacity in
    tokens) · looks, one per piece and row that sees it (row, distance, keys seen, first slot, words of
    exclusions per layer) · hidden: per look the address of its words or 0 · sharpness: per look what its
    scores are multiplied with · first_slot: per row and one more · own: per row (its piece, its token in it,
    local position) · joint: per row its slots [first, end) whose sum is Z and which weigh Z^more more ·
    addresses: of all pieces' keys and values (``Segment.addresses``), which ``pieces`` keep alive."""

    items_I4: Int32
    pieces_P3: Int32
    looks_N5: Int32
    hidden_N: Int64
    sharpness_N: Float32
    first_slot_R: Int32
    own_R3: Int32
    joint_R2: Int32
    more_R: Float32
    num_slots: int
    num_positions: int
    excludes: bool
    addresses: Int64
    tiling: Tiling
    pieces: Sequence[Piece]

    @property
    def sizes(self) -> TableSizes:
        return TableSizes(
            len(self.own_R3), len(self.items_I4), len(self.looks_N5), self.num_slots, len(self.pieces_P3)
        )

    def padded(self, to: TableSizes) -> Tables:
        """With rows that belong to no piece (-1), see nothing and come out as 0, items without rows and keys,
        and what else is missing to these sizes: a program of any step up to them reads tables of one form."""
        sizes = self.sizes
        rows, looks = to.num_rows - sizes.num_rows, to.num_looks - sizes.num_looks
        no_items = np.tile(np.array([[0, _NOBODY, 0, 0]], np.int32), (to.num_items - sizes.num_items, 1))
        return replace(
            self,
            items_I4=np.concatenate((self.items_I4, no_items)),
            pieces_P3=_longer(self.pieces_P3, to.num_pieces - sizes.num_pieces),
            looks_N5=_longer(self.looks_N5, looks),
            hidden_N=_longer(self.hidden_N, looks),
            sharpness_N=_longer(self.sharpness_N, looks),
            first_slot_R=_longer(self.first_slot_R, rows, self.num_slots),
            own_R3=_longer(self.own_R3, rows, -1),
            joint_R2=_longer(self.joint_R2, rows),
            more_R=_longer(self.more_R, rows),
            num_slots=to.num_slots,
            addresses=_longer(
                self.addresses, (to.num_pieces - sizes.num_pieces) * len(self.addresses) // sizes.num_pieces
            ),
        )


def num_flat_rows(piece: Piece, group: int) -> int:
    return group * sum(visit.num_rows for visit in piece.visits)


def choose_tiling(
    pieces: Sequence[Piece], group: int, num_kv_heads: int, num_processors: int, high: int = 64
) -> Tiling:
    """Tiles of few rows where no stack is higher, of ``high`` where one is much higher; splits as long as
    still keep every processor busy."""
    flat = [num_flat_rows(piece, group) for piece in pieces]
    block_rows = 16 if max(flat) <= 16 else 64 if max(flat) < _MANY_FLAT_ROWS else high
    lengths = [max(visit.num_tokens for visit in piece.visits) for piece in pieces]
    tiles = [num_kv_heads * -(-rows // block_rows) for rows in flat]
    for split_len in reversed(_SPLIT_LENS):
        num_programs = sum(n * -(-length // split_len) for n, length in zip(tiles, lengths, strict=True))
        if num_programs >= 2 * num_processors:
            break
    return Tiling(block_rows, split_len)


def plan_tables(
    lanes: Sequence[Lane], spec: ModelSpec, tiling: Tiling | None, num_processors: int, high: int = 64
) -> Tables:
    """Of a step. ``tiling`` None: the one that suits it (``choose_tiling``)."""
    pieces, group = pieces_of(lanes), spec.num_heads // spec.num_kv_heads
    tiling = tiling or choose_tiling(pieces, group, spec.num_kv_heads, num_processors, high)
    return build_tables(pieces, lanes, group, tiling)


def build_tables(pieces: Sequence[Piece], lanes: Sequence[Lane], group: int, tiling: Tiling) -> Tables:
    visits = [(p, visit) for p, piece in enumerate(pieces) for visit in piece.visits]
    start, counts, distance, num_tokens, nth = (
        np.array(column, dtype=np.int64)
        for column in zip(
            *((v.start, v.num_rows, v.distance, v.num_tokens, v.nth) for _, v in visits), strict=True
        )
    )
    _, step = _runs(counts)

    def of_looks(of_visits: NDArray[Any]) -> NDArray[Any]:
        """What is one per visit, one per look."""
        return np.repeat(of_visits, counts)

    piece_V = np.array([p for p, _ in visits], dtype=np.int64)
    piece_of = of_looks(piece_V)
    row, look_distance = of_looks(start) + step, of_looks(distance) + _further(visits, step)
    first, own = np.array([(piece.segment.start, piece.own) for piece in pieces], dtype=np.int64).T
    behind_first = look_distance - of_looks(first[piece_V])
    seen = np.where(
        of_looks(own[piece_V]),
        of_looks(num_tokens - counts) + 1 + step,
        np.minimum(of_looks(num_tokens), behind_first),
    )

    num_splits = -(-seen // tiling.split_len)
    order = np.lexsort((of_looks(nth), row))
    slot = np.empty_like(row)
    slot[order] = np.cumsum(num_splits[order]) - num_splits[order]
    num_rows = sum(lane.num_rows for lane in lanes)
    per_row = np.bincount(row, weights=num_splits, minlength=num_rows).astype(np.int64)

    num_slots = int(num_splits.sum())
    temperatures = np.array([v.tempering.temperature if v.tempering else 1.0 for _, v in visits])
    joint_R2, more_R = np.zeros((num_rows, 2), dtype=np.int64), np.zeros(num_rows)
    if any(v.tempering for _, v in visits):
        hot = of_looks(np.array([v.tempering is not None for _, v in visits]))
        more = of_looks(np.array([v.tempering.more if v.tempering else 0.0 for _, v in visits]))
        joint_R2[row[hot], 0] = num_slots
        np.minimum.at(joint_R2[:, 0], row[hot], slot[hot])
        np.maximum.at(joint_R2[:, 1], row[hot], (slot + num_splits)[hot])
        more_R[row[hot]] = more[hot]

    words = [v.excluded.words_LW if v.excluded else None for _, v in visits]
    num_words = np.array([0 if w is None else w.shape[1] for w in words], dtype=np.int64)
    addresses = np.array([0 if w is None else w.data_ptr() for w in words], dtype=np.int64)
    looks_per_piece = np.bincount(piece_of, minlength=len(pieces))
    first_look = np.cumsum(looks_per_piece) - looks_per_piece
    return Tables(
        items_I4=_items(first_look, looks_per_piece, seen, group, tiling),
        pieces_P3=_columns(
            first_look, looks_per_piece, np.array([piece.segment.capacity for piece in pieces])
        ),
        looks_N5=_columns(row, look_distance, seen, slot, of_looks(num_words)),
        hidden_N=of_looks(addresses),
        sharpness_N=of_looks((1 / temperatures).astype(np.float32)),
        first_slot_R=np.concatenate(([0], np.cumsum(per_row))).astype(np.int32),
        own_R3=_own(lanes, len(pieces)),
        joint_R2=joint_R2.astype(np.int32),
        more_R=more_R.astype(np.float32),
        num_slots=num_slots,
        num_positions=int(look_distance.max()) + 1,
        excludes=bool(num_words.any()),
        addresses=np.concatenate([piece.segment.addresses() for piece in pieces]),
        tiling=tiling,
        pieces=pieces,
    )


def _items(first_look: Int64, num_looks: Int64, seen_N: Int64, group: int, tiling: Tiling) -> Int32:
    """Programs that read the same keys stand side by side, so that they meet in the cache."""
    flat_rows = num_looks * group
    piece, tile = _runs(-(-flat_rows // tiling.block_rows))
    flat = tile * tiling.block_rows
    first = first_look[piece] + flat // group
    last = first_look[piece] + (np.minimum(flat + tiling.block_rows, flat_rows[piece]) - 1) // group
    bounds = np.stack((first, last + 1), axis=1).ravel()
    most_seen = np.maximum.reduceat(np.append(seen_N, 0), bounds)[::2]  # by any row of the tile
    tile_of, split = _runs(-(-most_seen // tiling.split_len))
    begin = split * tiling.split_len
    end = np.minimum(begin + tiling.split_len, most_seen[tile_of])
    order = np.lexsort((flat[tile_of], begin, piece[tile_of]))
    return _columns(piece[tile_of], flat[tile_of], begin, end)[order]


def _own(lanes: Sequence[Lane], num_pieces: int) -> Int32:
    """The places where each row's key and value go."""
    lane_of, step = _runs(np.array([lane.num_rows for lane in lanes], dtype=np.int64))
    places = [lane.places() for lane in lanes]
    old, first = np.array(
        [(lane.branch.segment.length, p[0]) for lane, p in zip(lanes, places, strict=True)], dtype=np.int64
    ).T
    scattered = any(isinstance(p, np.ndarray) for p in places)
    place = np.concatenate(places) if scattered else first[lane_of] + step
    return _columns(num_pieces - len(lanes) + lane_of, old[lane_of] + step, place)


def _further(visits: Sequence[tuple[int, Visit]], step: Int64) -> Int64:
    """The number of positions that every row stands behind the first of its visit."""
    if all(visit.steps is None for _, visit in visits):
        return step
    return np.concatenate([np.arange(v.num_rows) if v.steps is None else v.steps for _, v in visits])


def _longer(table: NDArray[NumberT], count: int, fill: int = 0) -> NDArray[NumberT]:
    """With so many entries more."""
    return np.concatenate((table, np.full((count, *table.shape[1:]), fill, table.dtype)))


def _runs(counts: Int64) -> tuple[Int64, Int64]:
    """[2, 3] → which run ([0, 0, 1, 1, 1]) and which of the run ([0, 1, 0, 1, 2])."""
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(len(run)) - (np.cumsum(counts) - counts)[run]


def _columns(*columns: Int64) -> Int32:
    table = np.empty((len(columns[0]), len(columns)), dtype=np.int32)
    for i, column in enumerate(columns):
        table[:, i] = column
    return table
