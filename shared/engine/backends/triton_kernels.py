"""The Triton kernels of a layer: append, attend, merge. ``backends.tables`` explains the tables,
``docs/attention.md`` the whole.

Pointers to segments are numbers in a table, since every segment is an allocation of its own. Products are
taken in the type of the model, sums, rotations and the softmax in float32; logarithms are to base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

_COUNTS = ["layer", "num_layers", "num_rows", "split_len"]  # of a step or a layer: no reason to compile anew


@triton.jit
def _begin(address, there, dtype: tl.constexpr):
    """Pointers to the beginnings of allocations, which are aligned: without the hint every load would be of a
    single number."""
    return tl.multiple_of(tl.load(address, mask=there, other=0).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _rotated(x, position, inside, cos, sin, HALF: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Rows at pointers ``x`` rotated to ``position``: dimension d < HALF turns with d + HALF, the others
    pass. In float32."""
    d = tl.arange(0, BLOCK_DIM)
    turns = d < 2 * HALF
    partner = tl.where(turns, tl.where(d < HALF, d + HALF, d - HALF), d)
    straight = tl.load(x[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    crossed = tl.load(x[:, None] + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    angle = position[:, None] * HALF + (d % HALF)[None, :]
    c = tl.load(cos + angle, mask=inside & turns[None, :], other=1.0)
    s = tl.load(sin + angle, mask=inside & turns[None, :], other=0.0)
    return straight * c + crossed * tl.where((d < HALF)[None, :], -s, s)


@triton.jit(do_not_specialize=_COUNTS)
def append_kernel(
    k,
    v,
    cos,
    sin,
    own,
    pieces,
    addresses,
    layer,
    num_layers,
    num_rows,
    stride_kh,
    stride_kr,
    stride_vh,
    stride_vr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program per some pairs of row and kv head: the key, rotated to its local position, and the value go
    into the row's private segment; of a row that has none (-1) they go nowhere."""
    pair = tl.program_id(0) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    there = pair < num_rows * NUM_KV_HEADS
    row = pair // NUM_KV_HEADS
    head = pair % NUM_KV_HEADS
    piece = tl.load(own + row * 3, mask=there, other=-1)
    there = piece >= 0
    token = tl.load(own + row * 3 + 1, mask=there, other=0)
    position = tl.load(own + row * 3 + 2, mask=there, other=0)
    capacity = tl.load(pieces + piece * 3 + 2, mask=there, other=0).to(tl.int64)
    d = tl.arange(0, BLOCK_DIM)
    inside = there[:, None] & (d < HEAD_DIM)[None, :]
    to = (head * capacity + token)[:, None] * HEAD_DIM + d[None, :]
    key = _rotated(k + row * stride_kr + head * stride_kh, position, inside, cos, sin, HALF, BLOCK_DIM)
    k_to = _begin(addresses + piece * 2 * num_layers + layer, there, k.dtype.element_ty)
    tl.store(k_to[:, None] + to, key.to(k.dtype.element_ty), mask=inside)
    value = tl.load((v + row * stride_vr + head * stride_vh)[:, None] + d[None, :], mask=inside, other=0.0)
    v_to = _begin(addresses + (piece * 2 + 1) * num_layers + layer, there, v.dtype.element_ty)
    tl.store(v_to[:, None] + to, value, mask=inside)


@triton.jit
def _one_more_tile(
    best,
    total,
    mean,
    rotated,
    scales,
    k,
    v,
    first,
    end,
    num_seen,
    words,
    num_words,
    HIDING: tl.constexpr,
    WIDEN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Goes on with a softmax over the keys from ``first`` on. ``HIDING``: 0 every row sees all of them, 1 all
    but what is excluded, the same for every row, 2 every row what ``num_seen`` and its own exclusions let it
    see (``words`` of each row; 3 without exclusions)."""
    BLOCK_ROWS: tl.constexpr = mean.shape[0]
    BLOCK_DIM: tl.constexpr = mean.shape[1]
    d = tl.arange(0, BLOCK_DIM)
    key = first + tl.arange(0, BLOCK_KEYS)
    k_at = k + key[None, :] * HEAD_DIM + d[:, None]
    v_at = v + key[:, None] * HEAD_DIM + d[None, :]
    real = d < HEAD_DIM
    if HIDING < 2 and HEAD_DIM == BLOCK_DIM:
        k_tile = tl.load(k_at)
    else:
        k_tile = tl.load(k_at, mask=(key < end)[None, :] & real[:, None], other=0.0)
    if WIDEN:
        k_tile = k_tile.to(tl.float32)
    score = tl.dot(rotated, k_tile, input_precision="ieee") * scales[:, None]
    index = first // 32 + tl.arange(0, BLOCK_KEYS // 32)
    bit = tl.arange(0, 32)
    if HIDING == 1:
        word = tl.load(words + index, mask=index < num_words, other=0)
        hidden = tl.reshape((word[:, None] >> bit[None, :]) & 1, (BLOCK_KEYS,))
        score = tl.where((hidden == 0)[None, :], score, float("-inf"))
    if HIDING >= 2:
        sight = key[None, :] < num_seen[:, None]
        if HIDING == 2:
            word = tl.load(words[:, None] + index[None, :], mask=index[None, :] < num_words[:, None], other=0)
            bits = (word[:, :, None] >> bit[None, None, :]) & 1
            sight = sight & (tl.reshape(bits, (BLOCK_ROWS, BLOCK_KEYS)) == 0)
        score = tl.where(sight, score, float("-inf"))
    new_best = tl.maximum(best, tl.max(score, 1))
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weight = tl.exp2(score - base[:, None])
    kept = tl.exp2(best - base)
    total = total * kept + tl.sum(weight, 1)
    if HIDING < 2 and HEAD_DIM == BLOCK_DIM:
        v_tile = tl.load(v_at)
    else:
        v_tile = tl.load(v_at, mask=(key < end)[:, None] & real[None, :], other=0.0)
    weight = weight.to(v_tile.dtype)
    if WIDEN:
        weight, v_tile = weight.to(tl.float32), v_tile.to(tl.float32)
    mean = mean * kept[:, None] + tl.dot(weight, v_tile, input_precision="ieee")
    return new_best, total, mean


@triton.jit(do_not_specialize=_COUNTS)
def attend_kernel(
    q,
    out,
    lse,
    cos,
    sin,
    items,
    pieces,
    looks,
    sharpness,
    hidden,
    addresses,
    layer,
    num_layers,
    stride_qh,
    stride_qr,
    scale,
    split_len,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    EXCLUDES: tl.constexpr,
    ALIKE: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program per item and kv head: the item's flat rows, rotated to their distance, over the item's
    keys. Fills the slots of ``out`` [slots, H, D] and ``lse`` [slots, H], float32; a row that sees nothing of
    the split but what it excludes has 0 and −∞. ``scale`` includes log2(e). ``WIDEN``: products in float32,
    the same numbers; the interpreter has none in bfloat16. ``ALIKE``: every key is taken in the same way,
    whatever the rows of the tile are; else what all of them see is taken without asking for each."""
    item = items + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    piece = tl.load(item)
    flat = tl.load(item + 1) + tl.arange(0, BLOCK_ROWS)
    begin = tl.load(item + 2)
    end = tl.load(item + 3)
    if begin == end:  # padding
        return
    first_look = tl.load(pieces + piece * 3)
    num_looks = tl.load(pieces + piece * 3 + 1)
    capacity = tl.load(pieces + piece * 3 + 2).to(tl.int64)
    there = flat < num_looks * GROUP
    look = first_look + flat // GROUP
    row = tl.load(looks + look * 5, mask=there, other=0)
    distance = tl.load(looks + look * 5 + 1, mask=there, other=0)
    num_seen = tl.load(looks + look * 5 + 2, mask=there, other=0)
    slot = tl.load(looks + look * 5 + 3, mask=there, other=0)
    scales = scale * tl.load(sharpness + look, mask=there, other=1.0)
    head = kv_head * GROUP + flat % GROUP
    if EXCLUDES:
        num_words = tl.load(looks + look * 5 + 4, mask=there, other=0)
        address = tl.load(hidden + look, mask=there, other=0) + layer.to(tl.int64) * num_words * 4
        words = address.to(tl.pointer_type(tl.int32))

    d = tl.arange(0, BLOCK_DIM)
    real = d < HEAD_DIM
    inside = there[:, None] & real[None, :]
    rotated = _rotated(q + row * stride_qr + head * stride_qh, distance, inside, cos, sin, HALF, BLOCK_DIM)
    rotated = rotated.to(q.dtype.element_ty)
    if WIDEN:
        rotated = rotated.to(tl.float32)

    base = kv_head * capacity * HEAD_DIM
    k = _begin(addresses + piece * 2 * num_layers + layer, True, q.dtype.element_ty) + base
    v = _begin(addresses + (piece * 2 + 1) * num_layers + layer, True, q.dtype.element_ty) + base
    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.full([BLOCK_ROWS], 0.0, tl.float32)
    mean = tl.full([BLOCK_ROWS, BLOCK_DIM], 0.0, tl.float32)
    rest = begin  # of the keys, those that are not taken yet
    if not ALIKE:
        fewest = tl.min(tl.where(there, num_seen, end), 0)
        whole = begin + tl.maximum(tl.minimum(fewest, end) - begin, 0) // BLOCK_KEYS * BLOCK_KEYS
        rest = whole
        if EXCLUDES:
            all_words, all_num = tl.max(address, 0), tl.max(num_words, 0)
            alike = tl.min(tl.where(there, address, all_words), 0) == all_words
            rest = tl.where(all_num == 0, whole, begin)
        for first in range(begin, rest, BLOCK_KEYS):
            best, total, mean = _one_more_tile(
                best, total, mean, rotated, scales, k, v, first, end, num_seen, 0, 0,
                0, WIDEN, HEAD_DIM, BLOCK_KEYS,
            )  # fmt: skip
        if EXCLUDES:
            hiding = rest
            rest = tl.where(alike, whole, rest)
            all_words = all_words.to(tl.pointer_type(tl.int32))
            for first in range(hiding, rest, BLOCK_KEYS):
                best, total, mean = _one_more_tile(
                    best, total, mean, rotated, scales, k, v, first, end, num_seen, all_words, all_num,
                    1, WIDEN, HEAD_DIM, BLOCK_KEYS,
                )  # fmt: skip
    if EXCLUDES:
        for first in range(rest, end, BLOCK_KEYS):
            best, total, mean = _one_more_tile(
                best, total, mean, rotated, scales, k, v, first, end, num_seen, words, num_words,
                2, WIDEN, HEAD_DIM, BLOCK_KEYS,
            )  # fmt: skip
    else:
        for first in range(rest, end, BLOCK_KEYS):
            best, total, mean = _one_more_tile(
                best, total, mean, rotated, scales, k, v, first, end, num_seen, 0, 0,
                3, WIDEN, HEAD_DIM, BLOCK_KEYS,
            )  # fmt: skip

    none = best == float("-inf")
    total = tl.where(none, 1.0, total)
    place = (slot + begin // split_len).to(tl.int64) * (GROUP * NUM_KV_HEADS) + head
    filled = there & (begin < num_seen)
    tl.store(lse + place, best + tl.log2(total), mask=filled)
    tl.store(
        out + place[:, None] * HEAD_DIM + d[None, :],
        mean / total[:, None],
        mask=filled[:, None] & real[None, :],
    )


@triton.jit(do_not_specialize=_COUNTS)
def merge_kernel(
    out,
    lse,
    first_slot,
    joint,
    more,
    merged,
    num_rows,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program per some pairs of row and head: softmax over the union of the row's slots is the weighted
    mean of them. Joint ones weigh more by a power of their sum."""
    pair = tl.program_id(0) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    there = pair < num_rows * NUM_HEADS
    row = pair // NUM_HEADS
    head = pair % NUM_HEADS
    first = tl.load(first_slot + row, mask=there, other=0)
    num_slots = tl.load(first_slot + row + 1, mask=there, other=0) - first
    first_joint = tl.load(joint + row * 2, mask=there, other=0)
    end_joint = tl.load(joint + row * 2 + 1, mask=there, other=0)
    best = tl.full([BLOCK_PAIRS], float("-inf"), tl.float32)
    total = tl.full([BLOCK_PAIRS], 0.0, tl.float32)
    for begin in range(0, tl.max(end_joint - first_joint, 0), BLOCK_SLOTS):
        slot = first_joint[:, None] + begin + tl.arange(0, BLOCK_SLOTS)[None, :]
        place = slot.to(tl.int64) * NUM_HEADS + head[:, None]
        part_lse = tl.load(lse + place, mask=slot < end_joint[:, None], other=float("-inf"))
        new_best = tl.maximum(best, tl.max(part_lse, 1))
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        total = total * tl.exp2(best - base) + tl.sum(tl.exp2(part_lse - base[:, None]), 1)
        best = new_best
    none = best == float("-inf")
    joint_more = tl.where(none, 0.0, tl.load(more + row, mask=there, other=0.0))
    joint_more = joint_more * tl.where(none, 0.0, best + tl.log2(tl.where(none, 1.0, total)))

    d = tl.arange(0, BLOCK_DIM)
    real = d < HEAD_DIM
    best = tl.full([BLOCK_PAIRS], float("-inf"), tl.float32)
    total = tl.full([BLOCK_PAIRS], 0.0, tl.float32)
    mean = tl.full([BLOCK_PAIRS, BLOCK_DIM], 0.0, tl.float32)
    for begin in range(0, tl.max(num_slots, 0), BLOCK_SLOTS):
        slot = begin + tl.arange(0, BLOCK_SLOTS)[None, :]
        filled = slot < num_slots[:, None]
        place = (first[:, None] + slot).to(tl.int64) * NUM_HEADS + head[:, None]
        part_lse = tl.load(lse + place, mask=filled, other=float("-inf"))
        of_joint = (first[:, None] + slot >= first_joint[:, None]) & (
            first[:, None] + slot < end_joint[:, None]
        )
        part_lse += tl.where(of_joint, joint_more[:, None], 0.0)
        at = place[:, :, None] * HEAD_DIM + d[None, None, :]
        part = tl.load(out + at, mask=filled[:, :, None] & real[None, None, :], other=0.0)
        new_best = tl.maximum(best, tl.max(part_lse, 1))
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(part_lse - base[:, None])
        kept = tl.exp2(best - base)
        total = total * kept + tl.sum(weight, 1)
        mean = mean * kept[:, None] + tl.sum(part * weight[:, :, None], 1)
        best = new_best
    mean = mean / tl.where(total == 0, 1.0, total)[:, None]
    to = pair.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
    tl.store(merged + to, mean.to(merged.dtype.element_ty), mask=there[:, None] & real[None, :])
