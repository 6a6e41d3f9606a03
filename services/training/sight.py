"""Attention of many rows over placed keys, differentiable: a softmax per row over all that it sees, the rule
of sight written out as a mask, rows that see the same keys together.

Shapes: G groups, S rows of a group and T keys of a group (both padded), R rows of the step, N keys that are
known in it, H query heads, K kv heads, D head_dim, F rotated pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.model.rope import Angles, Rotation

Ints = NDArray[np.int64]
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
    """Groups of similar size as one padded attention. ``first``: the key of the step's first row."""

    def __init__(self, groups: Sequence[SightGroup], rotation: Rotation, first: int) -> None:
        num_rows, num_keys = max(len(g.rows) for g in groups), max(len(g.keys) for g in groups)
        seen_GST = np.zeros((len(groups), num_rows, num_keys), dtype=np.bool_)
        seen_GST[:, :, 0] = True  # rows of padding must see something
        for seen_ST, group in zip(seen_GST, groups, strict=True):
            seen_ST[: len(group.rows), : len(group.keys)] = group.seen_ST()
        self._seen_GST = torch.from_numpy(seen_GST).to(rotation.device)
        self._rows_GS = _padded([g.rows.key - first for g in groups], num_rows, rotation)
        self._keys_GT = _padded([g.keys.key for g in groups], num_keys, rotation)
        turns_GT = _padded([g.keys.turn for g in groups], num_keys, rotation)
        self._angles = rotation.angles(turns_GT.flatten())
        self._bias = torch.empty(0)
        self.rows = np.concatenate([g.rows.key - first for g in groups])
        """In the order of ``attend``'s results."""
        places = [i * num_rows + np.arange(len(g.rows)) for i, g in enumerate(groups)]
        self._unpadded = torch.from_numpy(np.concatenate(places)).to(rotation.device)

    def attend(self, q_RHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float) -> Tensor:
        """Queries come rotated to their positions, keys as they lie. Returns [rows of all groups, H, D]."""
        q_GHSD = self._by_group(q_RHD.index_select(0, self._rows_GS.flatten()))
        k_GHTD = self._seen(rotated(k_NKD.index_select(0, self._keys_GT.flatten()), self._angles), q_RHD)
        v_GHTD = self._seen(v_NKD.index_select(0, self._keys_GT.flatten()), q_RHD)
        bias = self._bias_of(q_GHSD.dtype)
        out_GHSD = F.scaled_dot_product_attention(q_GHSD, k_GHTD, v_GHTD, attn_mask=bias, scale=scale)
        return out_GHSD.transpose(1, 2).flatten(0, 1).index_select(0, self._unpadded)

    def weights(self, q_RHD: Tensor, k_NKD: Tensor, scale: float) -> Tensor:
        """What ``attend`` weighs keys by: the mean over heads [G, S, T], in float32."""
        q_GHSD = self._by_group(q_RHD.index_select(0, self._rows_GS.flatten())).float()
        k_GHTD = self._seen(rotated(k_NKD.index_select(0, self._keys_GT.flatten()), self._angles), q_RHD)
        scores_GHST = scale * q_GHSD @ k_GHTD.float().transpose(-1, -2)
        return (scores_GHST + self._bias_of(torch.float32)).softmax(-1).mean(1)

    def _seen(self, x_NKD: Tensor, q_RHD: Tensor) -> Tensor:
        """By group, and as many heads as queries have."""
        return self._by_group(x_NKD).repeat_interleave(q_RHD.shape[1] // x_NKD.shape[1], 1)

    def _by_group(self, x_NHD: Tensor) -> Tensor:
        return x_NHD.view(len(self._rows_GS), -1, *x_NHD.shape[1:]).transpose(1, 2)

    def _bias_of(self, dtype: torch.dtype) -> Tensor:
        """The mask as the kernel takes it, made once for all layers."""
        if self._bias.dtype != dtype or not len(self._bias):
            shape = self._seen_GST[:, None].shape
            self._bias = torch.zeros(shape, dtype=dtype, device=self._seen_GST.device)
            self._bias.masked_fill_(~self._seen_GST[:, None], float("-inf"))
        return self._bias


def sights_of(groups: Iterable[SightGroup], rotation: Rotation, first: int) -> Iterator[Sight]:
    """As few as groups of similar size allow."""
    waiting = sorted((group for group in groups if len(group.rows)), key=lambda group: len(group.keys))
    while waiting:
        alike = [group for group in waiting if len(group.keys) <= _ALIKE * len(waiting[0].keys)]
        del waiting[: len(alike)]
        yield Sight(alike, rotation, first)


def rotated(x_NHD: Tensor, angles_NF: Angles) -> Tensor:
    """As ``Rotation.rotate`` has it, for gradients to flow through, and with rows in front of heads: in
    float32, rounded once."""
    cos_N1F, sin_N1F = (x_NF[:, None] for x_NF in angles_NF)
    half = cos_N1F.shape[-1]
    one, other = x_NHD[..., :half].float(), x_NHD[..., half : 2 * half].float()
    turned = torch.cat([one * cos_N1F - other * sin_N1F, other * cos_N1F + one * sin_N1F], -1)
    rest = x_NHD[..., 2 * half :]
    return torch.cat([turned.to(x_NHD.dtype), rest], -1) if rest.shape[-1] else turned.to(x_NHD.dtype)


def _padded(rows: Sequence[Ints], length: int, rotation: Rotation) -> Tensor:
    filled = np.stack([np.pad(row, (0, length - len(row))) for row in rows])
    return torch.from_numpy(filled).to(rotation.device)
