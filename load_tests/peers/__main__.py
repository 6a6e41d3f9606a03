"""Measures the engine beside others on a CPU: the same weights in the same precision, in one run.

    make peers                                             installs them beside .venv, then this
    python -m load_tests.peers --tools build/tools/peers
    … --peers llama.cpp --shape qwen2-0.5b --precision int8 --context 8192

Peers are llama.cpp (compiled for this machine) and OpenVINO GenAI (continuous batching, prefix cache), which
read the engine's random weights as GGUF: in two bytes (bfloat16; OpenVINO reads float16 and computes in
bfloat16) or one (Q8_0, beside the engine's int8). A context of 512-token chunks, a question of 128 tokens,
greedy answers; KV in two bytes. Before anything is timed each must say a token that stock transformers has
among the likeliest, for several prompts.

    ttft                  the engine: chunks resident, in another order each time; a peer computes what is no
                          prefix of what it had: everything
    ttft_over_exact_hit   the same, against a peer with this very context in this very order in its cache
    decode_1, decode_8    tokens per second behind the first ones; 8 questions over one context, which peers
                          have once in memory as well
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from gguf import GGMLQuantizationType
from rich.console import Console

from cluster.models.names import smollm2_file
from load_tests.benchmark import at_least, exit_code, in_turn, json_option, new_parser, option, printed, say
from load_tests.engine.command import limits
from load_tests.engine.ours import Ours
from load_tests.peers.process import PeerProcess
from load_tests.peers.weights import likeliest, write_gguf
from shared.engine_config import Weights
from shared.errors import ConfigError, InternalError
from shared.measuring.asking import random_ids
from shared.measuring.case import Case, Ids
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured, write_report
from shared.measuring.shapes import SHAPES, random_model
from shared.measuring.workers import Worker

NAME = "load_tests.peers"
Precision = Literal["bf16", "int8"]
BRANCHES = 8
_PROMPTS, _PROMPT_LEN, _LIKELIEST = 4, 48, 20


@dataclass(frozen=True, slots=True)
class PeerKind:
    """``module``: runs in the tools' environment. ``files``: in what it reads weights of a precision."""

    module: str
    files: Mapping[Precision, GGMLQuantizationType]
    needs_tokenizer: bool = False


PEERS = {
    "llama.cpp": PeerKind(
        "load_tests.peers.llama_cpp_worker",
        {"bf16": GGMLQuantizationType.BF16, "int8": GGMLQuantizationType.Q8_0},
    ),
    "openvino": PeerKind(
        "load_tests.peers.openvino_worker",
        {"bf16": GGMLQuantizationType.F16, "int8": GGMLQuantizationType.Q8_0},
        needs_tokenizer=True,
    ),
}
WEIGHTS: Mapping[Precision, tuple[Weights, int]] = {"bf16": ("exact", 2), "int8": ("int8", 1)}
"""By precision, what the engine calls them, and bytes of each."""


@dataclass(frozen=True, slots=True)
class Compared:
    """``name``: of the peer. ``runs``: of each of the two; of what takes the peer long, a third."""

    name: str
    case: Case
    precision: Precision
    rates: Rates
    runs: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def measurements(self, ours: Worker, peer: PeerProcess) -> Iterator[Measurement]:
        yield from self._first_tokens(ours, peer)
        yield self._decoding("decode_1", 1, ours, peer)
        yield self._decoding(f"decode_{BRANCHES}", BRANCHES, ours, peer)

    def _first_tokens(self, ours: Worker, peer: PeerProcess) -> Iterator[Measurement]:
        case = self.case
        say(f"{self.name}, {self.precision}: first token over {case.context} tokens")
        cold, stitched, hit = in_turn(
            (-(-self.runs // 3), lambda: peer.ask("prefill_s", ids=self._new_prompt())),
            (self.runs, lambda: ours.call(Ours.stitched_s)),
            (
                self.runs,
                lambda: peer.ask("hit_s", context=self._context(), question=self._new_questions(1)[0]),
            ),
        )
        limit = case.shape.ttft_limit_s(case.question, case.prompt_len, self.rates)
        one = partial(measured, unit="s", limit=limit, flops=case.stitched_flops)
        yield one(self._told("ttft"), stitched, baseline=cold)
        yield one(self._told("ttft_over_exact_hit"), stitched, baseline=hit)

    def _decoding(self, what: str, batch: int, ours: Worker, peer: PeerProcess) -> Measurement:
        case = self.case
        say(f"{self.name}, {self.precision}: decoding {batch}")

        def theirs() -> float:
            asked = {"context": self._context(), "questions": self._new_questions(batch)}
            seconds: float = peer.ask("decode_s", **asked, steps=case.decode)
            return batch * case.decode / seconds

        mine, peers = in_turn((self.runs, lambda: ours.call(Ours.decode_rate, batch)), (self.runs, theirs))
        step_s = case.step_limit_s(batch, self.rates, WEIGHTS[self.precision][1])
        return measured(
            self._told(what), mine, "token/s", better="higher", baseline=peers, limit=batch / step_s
        )

    def _told(self, what: str) -> str:
        return f"{what}_{self.case.context}_{self.precision}_{self.name}"

    def _context(self) -> Ids:
        """With the prefix in front."""
        return self.case.prompt_ids()[: self.case.prefix + self.case.context]

    def _new_questions(self, count: int) -> list[Ids]:
        """That the peer has not seen."""
        names = (f"question {next(self._numbers)}" for _ in range(count))
        return [random_ids(name, self.case.question, self.case.shape.vocab) for name in names]

    def _new_prompt(self) -> Ids:
        """Of which the peer has seen no beginning."""
        (first,) = random_ids(f"prompt {next(self._numbers)}", 1, self.case.shape.vocab)
        return (first, *self.case.prompt_ids()[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, or a peer that cannot be asked or computes something else, 130
    interrupted."""
    parser = new_parser(NAME, __doc__)
    parser.add_argument("--tools", type=Path, required=True, help="the environment of `make peers`")
    option(parser, "--peers", ",".join(PEERS), "to measure beside", type=_some_of(PEERS))
    option(parser, "--shape", "smollm2-135m", "of a public model", choices=sorted(SHAPES))
    option(parser, "--precision", ",".join(WEIGHTS), "of weights", type=_some_of(WEIGHTS))
    option(parser, "--context", 4096, "tokens", type=at_least(1))
    option(parser, "--question", 128, "tokens", type=at_least(1))
    option(parser, "--decode", 32, "tokens behind the first", type=at_least(1))
    option(parser, "--runs", 9, "of each; cold prefills a third of it", type=at_least(1))
    option(parser, "--threads", 0, "of each; 0: as many as there are cores", type=at_least(0))
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("peers", Console(stderr=True, highlight=False), lambda: _measure(args))


def _some_of(known: Mapping[Any, object]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {unknown[0]}")
        return found

    return read


def _measure(args: argparse.Namespace) -> None:
    threads = args.threads or torch.get_num_threads()
    case = Case(SHAPES[args.shape], args.context, question=args.question, decode=args.decode, threads=threads)
    rates = limits("cpu")
    found: list[Measurement] = []
    versions: dict[str, str] = {}
    for precision in args.precision:
        with Worker(Ours, case, weights=WEIGHTS[precision][0]) as ours:
            for name in args.peers:
                with tempfile.TemporaryDirectory(prefix="kvquilt-peers-") as folder:
                    peer = _peer(name, args.tools.absolute(), Path(folder), case, precision)
                with peer:
                    versions[name] = peer.version
                    compared = Compared(name, case, precision, rates, args.runs)
                    found += printed(compared.measurements(ours, peer))
    if args.json:
        write_report(args.json, found, {"versions": versions}, shape=args.shape, threads=threads)


def _peer(name: str, tools: Path, folder: Path, case: Case, precision: Precision) -> PeerProcess:
    """
    Raises:
        ConfigError: it is not installed, or cannot read such a model. InternalError: it computes something
            else than the model.
    """
    kind = PEERS[name]
    say(f"{name}: reads the model, {precision}")
    path, model = folder / "model.gguf", random_model(case.shape)
    tokenizer_of = smollm2_file() if kind.needs_tokenizer else None
    if not write_gguf(model, path, kind.files[precision], tokenizer_of) and kind.needs_tokenizer:
        raise ConfigError(f"--shape: {name} wants a tokenizer, which there is for smollm2-135m alone")
    room = case.prefix + case.context + BRANCHES * (case.question + case.decode + 1)
    peer = PeerProcess.in_tools(tools, kind.module, path, room, BRANCHES, case.threads)
    try:
        for number in range(_PROMPTS):
            ids = random_ids(f"check {number}", _PROMPT_LEN, case.shape.vocab)
            if (told := peer.ask("next_token", ids=ids)) not in likeliest(model, ids, _LIKELIEST):
                raise InternalError(f"{name} says token {told}, which is none of the model's likeliest")
    except BaseException:
        peer.__exit__()
        raise
    return peer


if __name__ == "__main__":
    raise SystemExit(main())
