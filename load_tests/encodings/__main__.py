"""Measures what the lossy encodings cost in quality and save in bytes, against the exact one, on a model's
own documents.

    python -m load_tests.encodings --model cluster/demo_assets/model --json build/encodings.json

Every shipped question is asked over three passages: those of the document that holds the answer, and others.
Teacher-forced over the tokens of the question and of the answer that exact KV gives, the logits with decoded
KV are compared with those with exact KV; then the question is answered freely, and the answer compared with
that of ``full``. Everything is computed by the engine, in the model's own type, on stitched (``reordered``)
chunks.

Shapes: R rows, V vocabulary, H KV heads, T tokens, D head_dim.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch

from cluster.cli.sources import find_sources
from cluster.local.demo import shipped_questions
from cluster.paths import DEMO_ASSETS
from load_tests.benchmark import json_option, new_parser, option, printed
from services.ingestion.chunker import Chunker
from services.ingestion.formats.parse import parse
from shared.documents import SourceDocument
from shared.engine import Engine, EngineConfig, LoadedModel, StoredSegment, load_model
from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.encodings import EXACT
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk, NoSource
from shared.engine_config import Weights
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import TokenEvent
from shared.identity import chunk_identity
from shared.kv_buffers import ENCODINGS, buffers_of
from shared.kv_format import ChunkFile
from shared.measuring.report import Measurement, measured, write_report
from shared.prompt import PromptTokenizer
from shared.stored_segments.files import FileSegment, KvShape, Scratch, encode_layers, write_layers

LOSSY = tuple(name for name in ENCODINGS if name != EXACT)
CHUNK_TOKENS, PASSAGES, MAX_TOKENS = 96, 3, 32
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodingTrial:
    chunks: tuple[Ids, ...]
    question: Ids


@dataclass(frozen=True, slots=True)
class EncodingAgreement:
    """One trial with one encoding; a number per row. ``tokens``: the free answer."""

    top1: tuple[bool, ...]
    kl: tuple[float, ...]
    square_error: tuple[float, ...]
    tokens: Ids


def shipped_trials(tokenizer: PromptTokenizer, count: int | None = None) -> list[EncodingTrial]:
    """The shipped questions, or the first ``count`` of them."""
    chunker = Chunker(tokenizer, CHUNK_TOKENS)
    chunks = {}
    for source in find_sources([DEMO_ASSETS / "documents"]).files:
        document = parse(SourceDocument(source.document_id, source.path.read_bytes()))
        chunks[source.document_id] = [chunk.token_ids for chunk in chunker.split(document)]
    trials = []
    for seed, asked in enumerate(shipped_questions()[:count]):
        draw = random.Random(seed)
        passages = chunks[asked.document][:PASSAGES]
        others = [ids for name, of_it in chunks.items() if name != asked.document for ids in of_it]
        passages += draw.sample(others, PASSAGES - len(passages))
        draw.shuffle(passages)
        trials.append(EncodingTrial(tuple(passages), tokenizer.encode_question(asked.question)))
    return trials


class EncodingBench(NoSource):
    """The model, and the KV of all passages in a file per encoding. As the source of its own engines it reads
    those of ``encoding``."""

    def __init__(
        self, model: LoadedModel, prefix_ids: Ids, trials: Sequence[EncodingTrial], directory: Path
    ) -> None:
        self.model = model
        self.trials = trials
        self.encoding = EXACT
        self._prefix_ids = prefix_ids
        self._scratch = Scratch(model.spec.rope)
        self._backend = backend_for(EngineConfig(), model.spec)
        self._shape = KvShape.of_model(model)
        self._directories = {encoding: directory / encoding for encoding in ENCODINGS}
        for of_encoding in self._directories.values():
            of_encoding.mkdir()
        self._prefill()
        self._prefix = Placement(self._computed_prefix(), 0)

    def answers(self, encoding: str, reuse: ReuseMode) -> list[Ids]:
        """Greedy."""
        self.encoding = encoding
        engine = Engine(self.model, EngineConfig(), self)
        sampling = SamplingParams(max_tokens=MAX_TOKENS)
        answers = []
        for i, trial in enumerate(self.trials):
            request = GenerateRequest(
                str(i), self._prefix_ids, self._chunks(trial), (trial.question,), reuse, sampling
            )
            answers.append(tuple(e.token_id for e in engine.generate(request) if isinstance(e, TokenEvent)))
        engine.shut_down()
        return answers

    @torch.inference_mode()
    def logits(self, encoding: str, trial: EncodingTrial, ids: Ids) -> torch.Tensor:
        """[R, V] of ``ids`` behind prefix and passages."""
        self.encoding = encoding
        context, end = [self._prefix], len(self._prefix_ids)
        for chunk in self._chunks(trial):
            context.append(Placement(self._read(chunk), end))
            end += len(chunk.token_ids)
        return self.model.logits(self._forward(Branch(self.model.spec, ids, end, tuple(context))))

    def file_bytes(self, encoding: str) -> int:
        """Of all passages as files."""
        return sum(path.stat().st_size for path in self._directories[encoding].iterdir())

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        paths = {chunk_id: self._directories[self.encoding] / chunk_id for chunk_id in chunk_lens}
        return {
            chunk_id: FileSegment(ChunkFile.open(path), self._scratch)
            for chunk_id, path in paths.items()
            if path.exists()
        }

    def save(self, chunk: ComputedChunk) -> None:
        for encoding, directory in self._directories.items():
            header = self._shape.header(chunk.key, chunk.prefix_ids, chunk.token_ids, encoding)
            layers = encode_layers(encoding, chunk.segment.k_LKTD, chunk.segment.v_LKTD, self._scratch)
            write_layers(directory / chunk.key, header, layers)

    def _prefill(self) -> None:
        engine = Engine(self.model, EngineConfig(), self)
        chunks = tuple(dict.fromkeys(chunk for trial in self.trials for chunk in self._chunks(trial)))
        for _ in engine.generate(PrefillRequest("prefill", self._prefix_ids, chunks)):
            pass
        engine.shut_down()

    @torch.inference_mode()
    def _computed_prefix(self) -> Segment:
        branch = Branch(self.model.spec, self._prefix_ids, 0)
        self._forward(branch)
        branch.segment.length = len(self._prefix_ids)
        return branch.segment

    def _forward(self, branch: Branch) -> torch.Tensor:
        return self.model.forward(StepPlan([Lane(branch, 0, len(branch.pending))], self._backend))

    def _read(self, chunk: Chunk) -> Segment:
        segment = Segment(self.model.spec, len(chunk.token_ids))
        with closing(self.open({chunk.chunk_id: len(chunk.token_ids)})[chunk.chunk_id]) as stored:
            stored.read_layers(range(len(segment.k_LKTD)), segment.k_LKTD, segment.v_LKTD)
        segment.length = len(chunk.token_ids)
        return segment

    def _chunks(self, trial: EncodingTrial) -> tuple[Chunk, ...]:
        fingerprint = self.model.fingerprint
        return tuple(
            Chunk(chunk_identity("", fingerprint, self._prefix_ids, ids), ids) for ids in trial.chunks
        )


def compare(bench: EncodingBench, encodings: Iterable[str] = LOSSY) -> dict[str, list[EncodingAgreement]]:
    """By encoding, the exact one included: its own agreement is perfect, its answers are the baseline."""
    answers = {encoding: bench.answers(encoding, ReuseMode.REORDERED) for encoding in (EXACT, *encodings)}
    agreements: dict[str, list[EncodingAgreement]] = {encoding: [] for encoding in answers}
    for i, trial in enumerate(bench.trials):
        ids = trial.question + answers[EXACT][i]
        exact_RV = bench.logits(EXACT, trial, ids)
        for encoding, free in answers.items():
            agreements[encoding].append(agreement_of(exact_RV, bench.logits(encoding, trial, ids), free[i]))
    return agreements


def agreement_of(exact_RV: torch.Tensor, ours_RV: torch.Tensor, tokens: Ids) -> EncodingAgreement:
    exact_log_RV, ours_log_RV = exact_RV.log_softmax(-1), ours_RV.log_softmax(-1)
    return EncodingAgreement(
        top1=tuple((exact_RV.argmax(-1) == ours_RV.argmax(-1)).tolist()),
        kl=tuple((exact_log_RV.exp() * (exact_log_RV - ours_log_RV)).sum(-1).tolist()),
        square_error=tuple((exact_RV - ours_RV).square().mean(-1).tolist()),
        tokens=tokens,
    )


def top1_agreement(agreements: Sequence[EncodingAgreement]) -> float:
    return fmean(same for agreement in agreements for same in agreement.top1)


def measure(bench: EncodingBench) -> Iterator[Measurement]:
    agreements = compare(bench)
    exact, full = agreements[EXACT], bench.answers(EXACT, ReuseMode.FULL)

    def like(answers: Sequence[Ids], of_e: Sequence[EncodingAgreement]) -> float:
        return fmean(a.tokens == answer for a, answer in zip(of_e, answers, strict=True))

    for encoding in LOSSY:
        of_e = agreements[encoding]
        top1, kl = top1_agreement(of_e), [x for a in of_e for x in a.kl]
        rms, n = math.sqrt(fmean(x for a in of_e for x in a.square_error)), len(kl)
        sizes = {"file_bytes": bench.file_bytes, "real_shape_bytes": real_bytes}
        for name, size_of in sizes.items():
            yield measured(f"{name}_{encoding}", [size_of(encoding)], "bytes", baseline=size_of(EXACT))
        yield Measurement(
            f"top1_agreement_{encoding}", top1, "fraction", limit=1.0, fraction_of_limit=top1, n=n
        )
        yield Measurement(f"kl_{encoding}", fmean(kl), "nats", min=min(kl), max=max(kl), n=n)
        yield Measurement(f"logit_rms_error_{encoding}", rms, "logits", n=n)
        name, baseline = f"answers_as_full_{encoding}", like(full, exact)
        yield measured(name, [like(full, of_e)], "fraction", better="higher", baseline=baseline)
        name, same = f"answers_as_exact_{encoding}", like([a.tokens for a in exact], of_e)
        yield Measurement(name, same, "fraction", limit=1.0, n=len(of_e))


def real_bytes(encoding: str) -> int:
    """Of a chunk of 512 tokens of Qwen2-7B, without its frame: 28 layers, 4 KV heads, 128 channels."""
    return 28 * 4 * sum(spec.row_bytes for spec in buffers_of(encoding, 512, 128, "bfloat16"))


@contextmanager
def bench_of(
    model_path: str, count: int | None = None, weights: Weights = "exact"
) -> Iterator[EncodingBench]:
    """The first ``count`` shipped questions (None: all) with the model in a directory."""
    tokenizer = PromptTokenizer.of_model(model_path)
    if tokenizer is None:
        raise SystemExit(f"{model_path}: has no tokenizer")
    trials = shipped_trials(tokenizer, count)
    with TemporaryDirectory(prefix="kvquilt-encodings-") as directory:
        model = load_model(model_path, weights=weights)
        yield EncodingBench(model, tokenizer.prefix_ids, trials, Path(directory))


def main() -> None:
    parser = new_parser("load_tests.encodings", __doc__)
    option(parser, "--model", str(DEMO_ASSETS / "model"), "directory of a model with a tokenizer")
    parser.add_argument("--questions", type=int, help="the first N shipped questions instead of all")
    json_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the shipped model is too small to share out
    with bench_of(args.model, args.questions) as bench:
        measurements = printed(measure(bench))
    if args.json:
        write_report(args.json, measurements)


if __name__ == "__main__":
    main()
