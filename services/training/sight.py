"""Attention of many rows over placed keys, differentiable: a softmax per row over all that it sees, the rule
of sight written out as a mask, rows that see the same keys together.

Shapes: L layers, G groups, S rows of a group and T keys of a group (both padded), P places: the padded rows
of all groups, R rows of the step, N keys that are known in it, H query heads, K kv heads, D head_dim, F
rotated pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.model.rope import Angles, Rotation

Ints = NDArray[np.int64]
_ALIGNED = 8  # keys, for attention on a GPU to take the mask as it is
_ALIKE = 1.5  # groups whose numbers of keys differ by no more are padded to one size


@dataclass(frozen=True, slots=True)
class PlacedTokens:
    """Tokens of a request. ``key``: which one each is of all keys of the step; ``position``: in the request;
    ``turn``: by how many positions its key is rotated from as it lies; ``part``: what of the request it
    belongs to."""

    key: Ints
    position: Ints
    turn: Ints
    part: Ints

    @classmethod
    def at(cls, keys: Ints, positions: Ints, part: int, turn: int | None = None) -> PlacedTokens:
        """``turn``: of keys that lie rotated already; others are rotated to their positions."""
        turns = positions if turn is None else np.full_like(positions, turn)
        return cls(keys, positions, turns, np.full_like(positions, part))

    @classmethod
    def joined(cls, runs: Sequence[PlacedTokens]) -> PlacedTokens:
        none = np.zeros(0, np.int64)
        of_all = ([getattr(run, one.name) for run in runs] for one in fields(cls))
        return cls(*(np.concatenate([none, *of_one]) for of_one in of_all))

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, slots=True)
class SightGroup:
    """Rows, and all keys that some of them see. ``sees`` [parts, parts]: rows of a part see keys of a part
    that stand in front of them. Every row sees its own key."""

    rows: PlacedTokens
    keys: PlacedTokens
    sees: NDArray[np.bool_]

    def seen_ST(self) -> NDArray[np.bool_]:
        rows, keys = self.rows, self.keys
        in_front_ST = keys.position < rows.position[:, None]
        own_ST = keys.key == rows.key[:, None]
        seen_ST: NDArray[np.bool_] = self.sees[rows.part][:, keys.part] & in_front_ST | own_ST
        return seen_ST


class Sight:
    """Groups of similar size as one padded attention. ``num_known``: keys in front of those of the step's
    rows. A group's known keys lie in front of its fresh ones::

        keys of a group    [known … padding][fresh … padding]

    In a step over known keys its fresh keys are those of its rows, one by one.
    """

    def __init__(self, groups: Sequence[SightGroup], rotation: Rotation, num_known: int) -> None:
        device = rotation.device
        known = [np.flatnonzero(group.keys.key < num_known) for group in groups]
        fresh = [np.flatnonzero(group.keys.key >= num_known) for group in groups]
        num_rows, known_len, fresh_len = (max(map(len, x)) for x in ([g.rows for g in groups], known, fresh))
        if device.type == "cuda" and known_len:
            known_len += -(known_len + fresh_len) % _ALIGNED
        elif device.type == "cuda" and not num_known:
            fresh_len += -fresh_len % _ALIGNED
        seen_GST = np.zeros((len(groups), num_rows, known_len + fresh_len), dtype=np.bool_)
        for seen_ST, group, of_known, of_fresh in zip(seen_GST, groups, known, fresh, strict=True):
            group_ST = group.seen_ST()
            seen_ST[: len(group.rows), : len(of_known)] = group_ST[:, of_known]
            seen_ST[: len(group.rows), known_len : known_len + len(of_fresh)] = group_ST[:, of_fresh]
            seen_ST[len(group.rows) :, 0] = True  # rows of padding must see something
        self._seen_GST = on_device(seen_GST, device)
        self._known = _PlacedKeys.of(groups, known, known_len, 0, rotation)
        self._fresh = _PlacedKeys.of(groups, fresh, fresh_len, num_known, rotation)
        self._bias = torch.empty(0)
        self.rows_P = _padded([group.rows.key - num_known for group in groups], num_rows)
        """Of the step; places of padding have the first."""
        self.filled_P = _padded([np.ones_like(group.rows.key) for group in groups], num_rows).astype(np.bool_)

    def __len__(self) -> int:
        return len(self.rows_P)

    def known(self, x_LNKD: Tensor, turn: bool) -> Tensor:
        """Of all layers [L, G, K, T, D]. ``turn``: they are keys."""
        taken = self._known.taken(x_LNKD, 1, turn)
        return taken.view(len(x_LNKD), len(self._seen_GST), -1, *x_LNKD.shape[2:]).transpose(2, 3)

    def fresh(self, x_RKD: Tensor, turn: bool) -> Tensor:
        """Of the step's rows [places, K, D]. ``turn``: they are keys."""
        return self._fresh.taken(x_RKD, 0, turn)

    def attend(
        self, q_PHD: Tensor, k_PKD: Tensor, v_PKD: Tensor, known: tuple[Tensor, Tensor] | None, scale: float
    ) -> Tensor:
        """Rotated queries and keys, by place, behind known keys and values [G, K, T, D]. Returns
        [places, H, D]."""
        q_GHSD, k_GKTD, v_GKTD = (self._by_group(x) for x in (q_PHD, k_PKD, v_PKD))
        if known is not None:
            k_GKTD, v_GKTD = torch.cat([known[0], k_GKTD], 2), torch.cat([known[1], v_GKTD], 2)
        group_size = q_GHSD.shape[1] // k_GKTD.shape[1]
        if group_size > 1:
            k_GKTD, v_GKTD = k_GKTD.repeat_interleave(group_size, 1), v_GKTD.repeat_interleave(group_size, 1)
        bias = self._bias_of(q_GHSD.dtype)
        out_GHSD = F.scaled_dot_product_attention(q_GHSD, k_GKTD, v_GKTD, attn_mask=bias, scale=scale)
        return out_GHSD.transpose(1, 2).flatten(0, 1)

    def _by_group(self, x_PHD: Tensor) -> Tensor:
        return x_PHD.view(len(self._seen_GST), -1, *x_PHD.shape[1:]).transpose(1, 2)

    def _bias_of(self, dtype: torch.dtype) -> Tensor:
        """The mask as the kernel takes it, made once for all layers."""
        if self._bias.dtype != dtype or not len(self._bias):
            shape = self._seen_GST[:, None].shape
            self._bias = torch.zeros(shape, dtype=dtype, device=self._seen_GST.device)
            self._bias.masked_fill_(~self._seen_GST[:, None], float("-inf"))
        return self._bias


@dataclass(frozen=True, slots=True)
class _PlacedKeys:
    """Keys of all groups, padded: which ones of those given, and by what each is turned."""

    index: Tensor
    angles: Angles

    @classmethod
    def of(
        cls, groups: Sequence[SightGroup], chosen: Sequence[Ints], length: int, first: int, rotation: Rotation
    ) -> _PlacedKeys:
        """``first``: the key that comes first in what is given."""
        pairs = list(zip(groups, chosen, strict=True))
        index = _padded([group.keys.key[which] - first for group, which in pairs], length)
        turns = _padded([group.keys.turn[which] for group, which in pairs], length)
        return cls(on_device(index, rotation.device), angles_of(turns, rotation))

    def taken(self, x: Tensor, dim: int, turn: bool) -> Tensor:
        taken = x.index_select(dim, self.index)
        return rotated(taken, self.angles) if turn else taken


def sights_of(groups: Iterable[SightGroup], rotation: Rotation, num_known: int) -> Iterator[Sight]:
    """As few as groups of similar size allow."""
    waiting = sorted((group for group in groups if len(group.rows)), key=lambda group: len(group.keys))
    while waiting:
        alike = [group for group in waiting if len(group.keys) <= _ALIKE * len(waiting[0].keys)]
        del waiting[: len(alike)]
        yield Sight(alike, rotation, num_known)


def rotated(x_NHD: Tensor, angles_NF: Angles) -> Tensor:
    """As ``Rotation.rotate`` has it, for gradients to flow through, and with rows in front of heads: in
    float32, rounded once."""
    cos_N1F, sin_N1F = (x_NF[:, None] for x_NF in angles_NF)
    half = cos_N1F.shape[-1]
    one, other = x_NHD[..., :half].float(), x_NHD[..., half : 2 * half].float()
    turned = torch.cat([one * cos_N1F - other * sin_N1F, other * cos_N1F + one * sin_N1F], -1)
    rest = x_NHD[..., 2 * half :]
    return torch.cat([turned.to(x_NHD.dtype), rest], -1) if rest.shape[-1] else turned.to(x_NHD.dtype)


def angles_of(positions: Ints, rotation: Rotation) -> Angles:
    """As ``Rotation.angles``, and a device need not wait for it."""
    cos_PF, sin_PF = rotation.table(int(positions.max(initial=0)) + 1)
    index = on_device(positions, rotation.device)
    return cos_PF.index_select(0, index), sin_PF.index_select(0, index)


def on_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy that a GPU makes beside its work."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class Moved(torch.autograd.Function):
    """Takes rows of ``x`` by ``index``, among them every row that counts once; ``back`` is where each row of
    ``x`` went. Gradients go the same way back, rather than being added up; those of rows that went nowhere
    are zero by ``counts``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, counts: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, *([] if counts is None else [counts]))
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        back, *counts = ctx.saved_tensors
        grad = grads[0].index_select(0, back)
        return (grad * counts[0][:, None, None] if counts else grad), None, None, None


def _padded(rows: Sequence[Ints], length: int) -> Ints:
    """One behind the other."""
    return np.concatenate([np.pad(row, (0, length - len(row))) for row in rows])
