"""Shows where a step's time goes: matrix products, attention (or layers that are one native call), small
operations, and Python between them.

    python -m load_tests.engine.profile --shape qwen2-0.5b --context 4096 --questions 8

Shares are of a profiled run, which is slower than a plain one; the plain one's time stands beside it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from torch.profiler import ProfilerActivity, profile, record_function

from load_tests.benchmark import new_parser, option
from load_tests.engine.ours import Ours
from shared.engine.backends.native import NativeAttention
from shared.engine.model.linear_kernels import Layers, LinearKernels, Stages
from shared.measuring.case import Case
from shared.measuring.shapes import SHAPES

ATTENTION = "the native attention of a layer"
LAYERS = "all layers, in one native call"
PRODUCTS = "native norms and products"
KINDS = {
    "all layers": (LAYERS,),
    "matrix products": (
        PRODUCTS,
        *("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "mkldnn::_linear_pointwise"),
    ),
    "attention": (
        ATTENTION,
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_flash_attention_forward",
    ),
}
SMALL, PYTHON = "small operations", "Python and all else"


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("load_tests.engine.profile", __doc__)
    option(parser, "--shape", "qwen2-0.5b", "of a public model", choices=sorted(SHAPES))
    option(parser, "--context", 4096, "tokens in chunks of 512")
    option(parser, "--question", 128, "tokens")
    option(parser, "--questions", 1, "over one context")
    option(parser, "--decode", 32, "tokens after the first")
    option(parser, "--rows", 15, "operators to list")
    args = parser.parse_args(argv)
    ours = Ours(Case(SHAPES[args.shape], args.context, args.question, args.decode))
    _print("first token, one question", ours.stitched_s, args.rows)
    _print(
        f"decoding, {args.questions} questions",
        lambda: args.questions * args.decode / ours.decode_rate(args.questions),
        args.rows,
    )
    return 0


def _marked_as(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **options: Any) -> Any:
        with record_function(name):
            return run(*args, **options)

    return marked


def _print(what: str, work: Callable[[], float], num_rows: int) -> None:
    """``work`` returns the time that counts; setting up and prefilling before it are in the
    shares all the same."""
    work()
    plain_s = work()
    # Torch does not see native calls by itself.
    with (
        mock.patch.object(NativeAttention, "run", _marked_as(ATTENTION, NativeAttention.run)),
        mock.patch.object(Layers, "run", _marked_as(LAYERS, Layers.run)),
        mock.patch.object(Stages, "run", _marked_as(PRODUCTS, Stages.run)),
        mock.patch.object(LinearKernels, "product", _marked_as(PRODUCTS, LinearKernels.product)),
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
