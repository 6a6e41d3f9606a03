"""Says what a peer is asked, and answers it: an object per line of stdin, one per line of stdout. It runs in
the environment that ``make peers`` makes, which has nothing of kvquilt's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Protocol


class PeerModel(Protocol):
    """Another system with a model. Tokens by their ids; answers are greedy; times in seconds."""

    @property
    def version(self) -> str: ...

    def next_token(self, ids: Sequence[int]) -> int:
        """Behind these."""
        ...

    def prefill_s(self, ids: Sequence[int]) -> float:
        """To the first token, of a prompt of which nothing is cached."""
        ...

    def hit_s(self, context: Sequence[int], question: Sequence[int]) -> float:
        """To the first token, with the KV of the context cached, and not that of the question."""
        ...

    def decode_s(self, context: Sequence[int], questions: Sequence[Sequence[int]], steps: int) -> float:
        """Of as many steps behind the first tokens, each a token for every question over the context."""
        ...


def answer_lines(peer: PeerModel) -> None:
    """The first line is the peer's ``version``. Each object names a method (``do``) and its arguments."""
    print(json.dumps({"value": peer.version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"value": getattr(peer, asked.pop("do"))(**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
