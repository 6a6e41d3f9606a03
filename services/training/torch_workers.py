"""The workers of ``torch.distributed``'s process group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET = 1 << 24  # numbers that are added up at once


class TorchWorkers:
    """``device``: where the group adds up, a GPU's for NCCL. Its sums are the same from run to run as long as
    the number of workers is."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.count, self._device = dist.get_rank(), dist.get_world_size(), device

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for bucket in _buckets(tensors):
            flat = torch.cat([x.reshape(-1) for x in bucket]).to(self._device)
            dist.all_reduce(flat)
            parts = torch.split(flat, [x.numel() for x in bucket])
            for x, part in zip(bucket, parts, strict=True):
                x.copy_(part.view_as(x))

    def wait_for_all(self) -> None:
        self.add_up([torch.zeros(1)])


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for _, alike in groupby(tensors, key=lambda x: (x.dtype, x.device)):
        bucket: list[Tensor] = []
        for x in alike:
            if bucket and sum(y.numel() for y in bucket) + x.numel() > _BUCKET:
                yield bucket
                bucket = []
            bucket.append(x)
        yield bucket
