"""Measures what seals cost, by pairs: the time to the first token with KV on disk that is sealed and must be
(`auth.require_seals`), and with the same KV without seals.

    python -m load_tests.seals --json build/seals.json

Both from the page cache, which is where a seal's cost would show most, by an engine over a node's store in
this process; which of a pair comes first alternates. Printed are the medians, and the median of the pairs'
ratios with its 95 % interval.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from load_tests.benchmark import at_least, json_option, new_parser, option, printed
from load_tests.kv_store.stored_ttft import MS, Contexts, stored_engine
from shared.measuring.asking import timings_of
from shared.measuring.paired import median_of
from shared.measuring.report import Measurement, measured, write_report
from shared.measuring.shapes import QWEN2_05B, Shape, build_model
from shared.principals.config import AuthConfig
from shared.principals.secret import make_secret

NAME = "load_tests.seals"


def measure(directory: Path, shape: Shape, contexts: Contexts, num_pairs: int) -> Iterator[Measurement]:
    """``ttft_sealed``, and its ratio to what the same takes without seals."""
    model = build_model(shape, "cpu")
    requests = contexts.requests(shape.vocab, model.fingerprint)
    secret = directory / "secret"
    make_secret(secret)
    arms = {False: None, True: AuthConfig(secret_file=str(secret), require_seals=True)}
    times = defaultdict[bool, list[float]](list)
    with ExitStack() as stack:
        stored = {
            sealed: stack.enter_context(stored_engine(directory / f"sealed-{sealed}", model, contexts, auth))
            for sealed, auth in arms.items()
        }
        for number in range(num_pairs + 1):
            request = requests[number % len(requests)]
            for sealed in (False, True) if number % 2 else (True, False):
                engine, paths = stored[sealed]
                for path in paths():
                    path.read_bytes()
                times[sealed].append(timings_of(engine, request).first_token_s * MS)
    plain, sealed_ms = times[False][1:], times[True][1:]  # the first ones warm up
    yield measured("ttft_sealed", sealed_ms, "ms", baseline=plain)
    more = median_of([one / other for one, other in zip(sealed_ms, plain, strict=True)])
    yield Measurement(
        "ttft_sealed_over_unsealed", more.value, "× unsealed", min=more.low, max=more.high, n=num_pairs
    )


def main() -> None:
    parser = new_parser(NAME, __doc__)
    option(parser, "--pairs", 40, "of questions", type=at_least(2))
    json_option(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvquilt-seals-") as directory:
        measurements = printed(measure(Path(directory), QWEN2_05B, Contexts(), args.pairs))
    if args.json:
        write_report(args.json, measurements)


if __name__ == "__main__":
    main()
