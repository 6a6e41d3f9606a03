"""Measures what int8 weights cost in quality and save in bytes, against exact ones, on a model's own
documents.

    python -m load_tests.weights --model cluster/demo_assets/model --json build/weights.json

Every shipped question is asked over three passages, as ``load_tests.encodings`` asks it, each model over KV
of its own. Teacher-forced over the tokens of the question and of the answer that exact weights give, the
logits are compared; then the question is answered freely, and the answer compared with that of exact weights.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from statistics import fmean

import torch
from rich.console import Console

from cluster.paths import DEMO_ASSETS
from load_tests.benchmark import exit_code, json_option, new_parser, option, printed
from load_tests.encodings.__main__ import EncodingBench, agreement_of, bench_of, top1_agreement
from shared.engine.kv.encodings import EXACT
from shared.engine.model.int8 import int8_bytes
from shared.engine.model.packing import packed_bytes
from shared.generation.modes import ReuseMode
from shared.measuring.report import Measurement, measured, write_report


def measure(exact: EncodingBench, int8: EncodingBench) -> Iterator[Measurement]:
    """Both over the same trials."""
    answers, ours = (bench.answers(EXACT, ReuseMode.REORDERED) for bench in (exact, int8))
    agreements = []
    for trial, answer, free in zip(exact.trials, answers, ours, strict=True):
        exact_RV, int8_RV = (bench.logits(EXACT, trial, trial.question + answer) for bench in (exact, int8))
        agreements.append(agreement_of(exact_RV, int8_RV, free))
    kl, top1 = [x for a in agreements for x in a.kl], top1_agreement(agreements)
    rms = math.sqrt(fmean(x for a in agreements for x in a.square_error))
    same = fmean(answer == free for answer, free in zip(answers, ours, strict=True))
    yield Measurement("kl_int8_weights", fmean(kl), "nats", min=min(kl), max=max(kl), n=len(kl))
    name = "top1_agreement_int8_weights"
    yield Measurement(name, top1, "fraction", limit=1.0, fraction_of_limit=top1, n=len(kl))
    yield Measurement("logit_rms_error_int8_weights", rms, "logits", n=len(kl))
    yield Measurement("answers_as_exact_int8_weights", same, "fraction", limit=1.0, n=len(answers))
    num_bytes = int8_bytes(int8.model.hf_model)
    packed = packed_bytes(exact.model.hf_model) or None
    yield measured("weight_bytes_int8", [num_bytes], "byte", baseline=packed and [packed])


def main() -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser("load_tests.weights", __doc__)
    option(parser, "--model", str(DEMO_ASSETS / "model"), "directory of a model with a tokenizer")
    option(parser, "--threads", 1, "of torch: the shipped model is too small to share out")
    parser.add_argument("--questions", type=int, help="the first N shipped questions instead of all")
    json_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    def run() -> None:
        of = (args.model, args.questions)
        with bench_of(*of) as exact, bench_of(*of, weights="int8") as int8:
            measurements = printed(measure(exact, int8))
        if args.json:
            write_report(args.json, measurements)

    return exit_code("load_tests.weights", Console(stderr=True, highlight=False), run)


if __name__ == "__main__":
    sys.exit(main())
