"""Where a step's time goes: matrix products, attention, small operations, and Python between them.

    python -m load_tests.engine.profile --shape qwen2-0.5b --context 4096 --questions 8

Shares are of a profiled run, which is slower than a plain one; the plain one's time stands beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from load_tests.engine.case import Case
from load_tests.engine.ours import Ours
from shared.engine.backends.native import NativeAttention
from shared.measuring.shapes import SHAPES

ATTENTION = "the native attention of a layer"
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "mkldnn::_linear_pointwise"),
    "attention": (
        ATTENTION,
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_flash_attention_forward",
    ),
}
_RUN = NativeAttention.run
SMALL, PYTHON = "small operations", "Python and all else"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.engine.profile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2-0.5b")
    parser.add_argument(
        "--context", type=int, default=4096, help="tokens in chunks of 512 (default: %(default)s)"
    )
    parser.add_argument("--question", type=int, default=128, help="tokens (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=1, help="over one context (default: %(default)s)")
    parser.add_argument(
        "--decode", type=int, default=32, help="tokens after the first (default: %(default)s)"
    )
    parser.add_argument("--rows", type=int, default=15, help="operators to list (default: %(default)s)")
    args = parser.parse_args(argv)
    ours = Ours(Case(SHAPES[args.shape], args.context, args.question, args.decode))
    _print("first token, one question", ours.stitched_s, args.rows)
    _print(
        f"decoding, {args.questions} questions",
        lambda: args.questions * args.decode / ours.decode_rate(args.questions),
        args.rows,
    )
    return 0


def _marked(*args: Any) -> torch.Tensor:
    with record_function(ATTENTION):
        return _RUN(*args)


def _print(what: str, work: Callable[[], float], num_rows: int) -> None:
    """``work``: what it returns is the time that counts; setting up and prefilling before it are in the
    shares all the same."""
    work()
    plain_s = work()
    # Torch does not see the native attention by itself.
    with (
        mock.patch.object(NativeAttention, "run", _marked),
        profile(activities=[ProfilerActivity.CPU]) as profiler,
    ):
        started = time.perf_counter()
        work()
        profiled_s = time.perf_counter() - started
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for event in profiler.key_averages():
        seconds[event.key] += event.self_cpu_time_total / 1e6
        calls[event.key] += event.count
    print(f"\n{what}: {plain_s:.3f} s; profiled, all of the request: {profiled_s:.3f} s")
    shares = {kind: sum(seconds[name] for name in names) for kind, names in KINDS.items()}
    shares[SMALL] = sum(seconds.values()) - sum(shares.values())
    shares[PYTHON] = max(0.0, profiled_s - sum(seconds.values()))
    for kind, spent_s in shares.items():
        print(f"  {kind:22} {spent_s:8.3f} s {spent_s / profiled_s:6.0%}")
    for name, spent_s in sorted(seconds.items(), key=lambda item: -item[1])[:num_rows]:
        print(f"    {name:52} {spent_s:8.3f} s {calls[name]:8} calls")


if __name__ == "__main__":
    sys.exit(main())
