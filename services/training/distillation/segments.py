"""Computes keys and values of contexts' chunks once, and keeps those in use where the model computes, as many
as there is room for."""

from __future__ import annotations

from collections import OrderedDict

import torch

from services.training.distillation.decoding import naming
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext
from services.training.fitting import Fitting
from services.training.known_kv import segments_of
from services.training.twin_request import Ids, PlacedChunk, SegmentKv
from shared.engine.model.model import LoadedModel

_CPU_BYTES = 1 << 30
_SHARE = 0.4  # of a GPU's free memory


def keep_segments(
    model: LoadedModel, prefix_ids: Ids, context: AskedContext, kept: Kept, fitting: Fitting
) -> None:
    """Computes what a context's chunks hold all together, whichever is missing: how rounding falls depends on
    the pass. ``fitting``: of chunks.

    Raises:
        ContextTooLong: names the context.
        ConfigError: out of memory with one chunk.
    """
    if all(map(kept.has_segment, context.chunks)):
        return
    with naming(context.name):
        segments = fitting.all(context.chunks, lambda some: segments_of(model, prefix_ids, some)[1])
    for chunk, segment in zip(context.chunks, segments, strict=True):
        kept.keep_segment(chunk, segment)


class KnownSegments:
    """The least recently used go first; they are read from ``kept`` again, or computed where that lacks
    them."""

    def __init__(self, model: LoadedModel, prefix_ids: Ids, kept: Kept) -> None:
        self._model, self._prefix_ids, self._kept = model, prefix_ids, kept
        self._segments = OrderedDict[PlacedChunk, SegmentKv]()
        self._num_bytes = 0
        device = model.spec.device
        on_gpu = device.type == "cuda"
        self._most_bytes = int(torch.cuda.mem_get_info(device)[0] * _SHARE) if on_gpu else _CPU_BYTES

    def of(self, chunk: PlacedChunk) -> SegmentKv:
        segment = self._segments.get(chunk)
        if segment is None:
            segment = self._segments[chunk] = self._read(chunk)
            self._num_bytes += segment.num_bytes
            while self._num_bytes > self._most_bytes and len(self._segments) > 1:
                self._num_bytes -= self._segments.popitem(last=False)[1].num_bytes
        self._segments.move_to_end(chunk)
        return segment

    def clear(self) -> None:
        """Clears half the room for what is read from here on the room."""
        self._segments.clear()
        self._num_bytes, self._most_bytes = 0, self._most_bytes // 2

    def _read(self, chunk: PlacedChunk) -> SegmentKv:
        segment = self._kept.segment(chunk)
        if segment is None:  # removed or broken meanwhile
            _, (segment,) = segments_of(self._model, self._prefix_ids, [chunk])
            self._kept.keep_segment(chunk, segment)
        device = self._model.spec.device
        return SegmentKv(segment.k_LTKD.to(device), segment.v_LTKD.to(device))
