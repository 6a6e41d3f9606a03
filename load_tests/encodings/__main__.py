"""What the lossy encodings cost in quality and save in bytes, against the exact one, on a model's own
documents.

    python -m load_tests.encodings --model cluster/demo_assets/model --json build/encodings.json

Every shipped question is asked over three passages: those of the document that holds the answer, and others.
Teacher-forced over the tokens of the question and of the answer that exact KV gives, the logits with decoded
KV are compared with those with exact KV; then the question is answered freely, and the answer compared with
that of ``full``. Everything is computed by the engine, in the model's own type, on stitched (``reordered``)
chunks.

Shapes: R rows, V vocabulary, H KV heads, T tokens, D head_dim.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cluster.paths import DEMO_ASSETS
from services.ingestion.chunker import Chunker
from services.ingestion.formats.parse import parse
from shared.documents import SourceDocument
from shared.engine import Engine, EngineConfig, LoadedModel, StoredSegment, load_model
from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.kv.encodings import EXACT, encoding_of
from shared.engine.kv.segment import Branch, Placement, Segment
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import TokenEvent
from shared.identity import chunk_identity
from shared.kv_buffers import ENCODINGS, buffers_of
from shared.measuring.report import Measurement, measured, write_report
from shared.prompt import PromptTokenizer
from shared.stored_segments.files import KvShape, Scratch, encode_layers, write_layers

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
    documents = {
        path.relative_to(DEMO_ASSETS / "documents").as_posix(): path
        for path in sorted((DEMO_ASSETS / "documents").rglob("*"))
        if path.is_file()
    }
    chunks = {
        name: [c.token_ids for c in chunker.split(parse(SourceDocument(name, path.read_bytes())))]
        for name, path in documents.items()
    }
    questions = json.loads((DEMO_ASSETS / "questions.json").read_text(encoding="utf-8"))
    return [
        _trial(tokenizer, q["question"], chunks, q["document"], i) for i, q in enumerate(questions[:count])
    ]


def _trial(
    tokenizer: PromptTokenizer, question: str, chunks: Mapping[str, Sequence[Ids]], document: str, seed: int
) -> EncodingTrial:
    draw = random.Random(seed)
    passages = list(chunks[document][:PASSAGES])
    others = [ids for name, of_document in chunks.items() if name != document for ids in of_document]
    passages += draw.sample(others, PASSAGES - len(passages))
    draw.shuffle(passages)
    return EncodingTrial(tuple(passages), tokenizer.encode_question(question))


class EncodingBench:
    """The model with the KV of all passages. ``SegmentSource`` of its own engines: what is exact in memory is
    read as if it had been stored in ``encoding``."""

    def __init__(self, model: LoadedModel, prefix_ids: Ids, trials: Sequence[EncodingTrial]) -> None:
        self.model = model
        self.trials = trials
        self.encoding = EXACT
        self._prefix_ids = prefix_ids
        self._scratch = Scratch(model.spec.rope)
        self._backend = backend_for(EngineConfig(), model.spec)
        self._kv: dict[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}
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
        shape = KvShape.of_model(self.model)
        ids = {chunk.chunk_id: chunk.token_ids for trial in self.trials for chunk in self._chunks(trial)}
        total = 0
        with tempfile.TemporaryDirectory() as directory:
            for chunk_id, (k_LHTD, v_LHTD) in self._kv.items():
                path = Path(directory) / "chunk"
                header = shape.header(chunk_id, self._prefix_ids, ids[chunk_id], encoding)
                write_layers(path, header, encode_layers(encoding, k_LHTD, v_LHTD, self._scratch))
                total += path.stat().st_size
        return total

    def open(self, chunk_lens: Mapping[str, int], encoding: str = "") -> Mapping[str, StoredSegment]:
        return {i: _Decoded(*self._kv[i], self.encoding, self._scratch) for i in chunk_lens if i in self._kv}

    def prefetch(self, chunk_ids: Sequence[str]) -> None:
        """All is in memory."""

    def as_stored(self, k_LHTD: Sequence[torch.Tensor], v_LHTD: Sequence[torch.Tensor]) -> None:
        pass

    def save(
        self,
        chunk_id: str,
        prefix_ids: Sequence[int],
        token_ids: Sequence[int],
        k_LHTD: Sequence[torch.Tensor],
        v_LHTD: Sequence[torch.Tensor],
        replace: bool,
        write_back: bool,
        encoding: str = "",
    ) -> None:
        self._kv[chunk_id] = (k_LHTD, v_LHTD)

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
        stored = self.open({chunk.chunk_id: len(chunk.token_ids)})[chunk.chunk_id]
        for layer, (k_HTD, v_HTD) in enumerate(zip(segment.k_LKTD, segment.v_LKTD, strict=True)):
            stored.read_layer(layer, k_HTD, v_HTD)
        segment.length = len(chunk.token_ids)
        return segment

    def _chunks(self, trial: EncodingTrial) -> tuple[Chunk, ...]:
        fingerprint = self.model.fingerprint
        return tuple(
            Chunk(chunk_identity("", fingerprint, self._prefix_ids, ids), ids) for ids in trial.chunks
        )


@dataclass(frozen=True, slots=True)
class _Decoded:
    """``StoredSegment`` of KV that goes through an encoding when it is read."""

    k_LHTD: Sequence[torch.Tensor]
    v_LHTD: Sequence[torch.Tensor]
    encoding: str
    scratch: Scratch

    def read_layer(self, layer: int, k_out_HTD: torch.Tensor, v_out_HTD: torch.Tensor) -> None:
        encoding, rotation = encoding_of(self.encoding), self.scratch.rotation(k_out_HTD.device)
        encoding.decode(
            encoding.encode(self.k_LHTD[layer], self.v_LHTD[layer], rotation), rotation, k_out_HTD, v_out_HTD
        )

    def close(self) -> None:
        pass


def compare(bench: EncodingBench, encodings: Iterable[str] = LOSSY) -> dict[str, list[EncodingAgreement]]:
    """By encoding, the exact one included: its own agreement is perfect, its answers are the baseline."""
    answers = {encoding: bench.answers(encoding, ReuseMode.REORDERED) for encoding in (EXACT, *encodings)}
    agreements: dict[str, list[EncodingAgreement]] = {encoding: [] for encoding in answers}
    for i, trial in enumerate(bench.trials):
        ids = trial.question + answers[EXACT][i]
        exact_RV = bench.logits(EXACT, trial, ids)
        for encoding, free in answers.items():
            agreements[encoding].append(_agreement(exact_RV, bench.logits(encoding, trial, ids), free[i]))
    return agreements


def _agreement(exact_RV: torch.Tensor, ours_RV: torch.Tensor, tokens: Ids) -> EncodingAgreement:
    exact_log_RV, ours_log_RV = exact_RV.log_softmax(-1), ours_RV.log_softmax(-1)
    return EncodingAgreement(
        top1=tuple((exact_RV.argmax(-1) == ours_RV.argmax(-1)).tolist()),
        kl=tuple((exact_log_RV.exp() * (exact_log_RV - ours_log_RV)).sum(-1).tolist()),
        square_error=tuple((exact_RV - ours_RV).square().mean(-1).tolist()),
        tokens=tokens,
    )


def top1_agreement(agreements: Sequence[EncodingAgreement]) -> float:
    rows = [same for agreement in agreements for same in agreement.top1]
    return sum(rows) / len(rows)


def measure(bench: EncodingBench) -> list[Measurement]:
    agreements = compare(bench)
    full = bench.answers(EXACT, ReuseMode.FULL)
    like_full = {
        e: sum(a.tokens == f for a, f in zip(of_e, full, strict=True)) / len(full)
        for e, of_e in agreements.items()
    }
    exact_bytes = bench.file_bytes(EXACT)
    measurements: list[Measurement] = []
    for encoding in LOSSY:
        of_e = agreements[encoding]
        kl = [x for a in of_e for x in a.kl]
        rms = (sum(x for a in of_e for x in a.square_error) / len(kl)) ** 0.5
        top1 = top1_agreement(of_e)
        measurements += [
            measured(
                f"file_bytes_{encoding}",
                [bench.file_bytes(encoding)],
                "bytes",
                better="lower",
                baseline=exact_bytes,
            ),
            measured(
                f"real_shape_bytes_{encoding}",
                [real_bytes(encoding)],
                "bytes",
                better="lower",
                baseline=real_bytes(EXACT),
            ),
            Measurement(
                f"top1_agreement_{encoding}", top1, "fraction", limit=1.0, fraction_of_limit=top1, n=len(kl)
            ),
            Measurement(f"kl_{encoding}", sum(kl) / len(kl), "nats", min=min(kl), max=max(kl), n=len(kl)),
            Measurement(f"logit_rms_error_{encoding}", rms, "logits", n=len(kl)),
            measured(
                f"answers_as_full_{encoding}",
                [like_full[encoding]],
                "fraction",
                better="higher",
                baseline=like_full[EXACT],
            ),
            Measurement(
                f"answers_as_exact_{encoding}",
                sum(a.tokens == b.tokens for a, b in zip(of_e, agreements[EXACT], strict=True)) / len(of_e),
                "fraction",
                limit=1.0,
                n=len(of_e),
            ),
        ]
    return measurements


def real_bytes(encoding: str) -> int:
    """Of a chunk of 512 tokens of Qwen2-7B, without its frame: 28 layers, 4 KV heads, 128 channels."""
    return 28 * 4 * sum(spec.row_bytes for spec in buffers_of(encoding, 512, 128, "bfloat16"))


def bench_of(model_path: str, count: int | None = None) -> EncodingBench:
    """The first ``count`` shipped questions (None: all) with the model in a directory."""
    tokenizer = PromptTokenizer.of_model(model_path)
    if tokenizer is None:
        raise SystemExit(f"{model_path}: has no tokenizer")
    return EncodingBench(load_model(model_path), tokenizer.prefix_ids, shipped_trials(tokenizer, count))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="load_tests.encodings", description="What lossy KV encodings cost and save."
    )
    parser.add_argument(
        "--model", default=str(DEMO_ASSETS / "model"), help="directory of a model with a tokenizer"
    )
    parser.add_argument(
        "--questions", type=int, default=None, help="the first N shipped questions instead of all"
    )
    parser.add_argument("--json", type=Path, help="where to write the report")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the shipped model is too small to share out
    measurements = measure(bench_of(options.model, options.questions))
    for line in _table(measurements):
        print(line)
    if options.json:
        write_report(options.json, measurements)


def _table(measurements: Sequence[Measurement]) -> Iterator[str]:
    for m in measurements:
        beside = f"{m.value / m.baseline:10.3f} of the exact encoding's" if m.baseline else ""
        yield f"{m.name:28s} {m.value:12.6g} {m.unit:10s}{beside}"


if __name__ == "__main__":
    main(sys.argv[1:])
