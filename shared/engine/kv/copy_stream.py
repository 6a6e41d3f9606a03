"""Copies of stored KV to a GPU: on a stream of their own, so that they wait for no computation, and none
waits for them that does not use what they bring."""

from __future__ import annotations

import torch


class CopyStream:
    """The stream of a loader's threads."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def enter(self) -> None:
        """From now on the calling thread orders its copies there."""
        torch.cuda.set_stream(self._stream)

    def ordered(self) -> torch.cuda.Event:
        """Returns the event that is over when all is that was ordered so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def is_filled_there(self, x: torch.Tensor) -> None:
        """Memory of this thread's stream that the engine reads: when it is free again it is for others only
        after what the engine ordered on it."""
        x.record_stream(torch.cuda.default_stream(x.device))
