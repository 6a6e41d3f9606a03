"""Training rows and loop, and the shipped model as stock ``transformers`` reads it."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
import torch
import yaml
from semantic_text_splitter import TextSplitter

from services.training.contexts import ContextShape, draw_context
from services.training.corpus import Worlds
from services.training.demo_documents import demo_documents
from services.training.evaluate import MODES, answers
from services.training.names import Split
from services.training.reader import Mode, Reader
from services.training.recipe import TrainingRecipe, draw_batch
from services.training.rendering import to_text
from services.training.rows import RowMaker, collate
from services.training.trainer import Trainer
from shared.errors import ConfigError

ASSETS = Path(__file__).parents[3] / "cluster" / "demo_assets"
TINY = TrainingRecipe(
    steps=4,
    vocab_size=400,
    tokenizer_documents=60,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=2,
    tokens_per_step=600,
)


@pytest.fixture(scope="module")
def shipped() -> Reader:
    torch.set_num_threads(1)
    return Reader.of_directory(str(ASSETS / "model"))


def test_a_training_run_can_be_interrupted_without_changing_the_model(tmp_path: Path) -> None:
    def trained(out: Path, *stops: int) -> dict[str, torch.Tensor]:
        for stop in stops:
            trainer = Trainer(TINY, out)
            trainer.resume()
            while trainer.step < stop:
                trainer.train_step()
            trainer.save()
        state: dict[str, torch.Tensor] = trainer.model.state_dict()
        return state

    at_once, in_parts = trained(tmp_path / "one", 4), trained(tmp_path / "two", 2, 4)
    assert all(torch.equal(at_once[name], in_parts[name]) for name in at_once)


def test_a_checkpoint_of_another_seed_is_refused(tmp_path: Path) -> None:
    Trainer(TINY, tmp_path).save()
    with pytest.raises(ConfigError, match="another recipe"):
        Trainer(dataclasses.replace(TINY, seed=1), tmp_path).resume()
    Trainer(dataclasses.replace(TINY, steps=9), tmp_path).resume()


def test_a_batch_depends_on_seed_and_step_only(tmp_path: Path) -> None:
    trainer = Trainer(TINY, tmp_path)
    first, again = draw_batch(TINY, trainer.maker, 3), draw_batch(TINY, trainer.maker, 3)
    other = draw_batch(dataclasses.replace(TINY, seed=1), trainer.maker, 3)
    assert torch.equal(first.ids_BT, again.ids_BT)
    assert not torch.equal(first.ids_BT[:, :64], other.ids_BT[:, :64])


def test_independent_rows_hide_other_chunks_and_other_questions(shipped: Reader) -> None:
    maker = RowMaker(shipped.prompt, shipped.model.config.eos_token_id)
    context = draw_context(random.Random(1), Worlds.load(), ContextShape(3, 200), Split.TRAIN, 2)
    batch = collate([maker.of_context(context, independent) for independent in (False, True)])
    segments_T = batch.segments_BT[0]
    sees_full, sees_alone = batch.bias_B1TT[:, 0] == 0

    def last_of(segment: int) -> int:
        return int((segments_T == segment).nonzero()[-1])

    for query, visible_full, visible_alone in (
        (last_of(2), {0, 1, 2}, {0, 2}),
        (last_of(1000), {0, 1, 2, 3, 1000}, {0, 1, 2, 3, 1000}),
        (last_of(1001), {0, 1, 2, 3, 1001}, {0, 1, 2, 3, 1001}),
    ):
        assert set(segments_T[sees_full[query]].tolist()) == visible_full
        assert set(segments_T[sees_alone[query]].tolist()) == visible_alone


def test_rows_supervise_the_answers_in_full(shipped: Reader) -> None:
    maker = RowMaker(shipped.prompt, shipped.model.config.eos_token_id)
    context = draw_context(random.Random(2), Worlds.load(), ContextShape(2, 200), Split.TRAIN, 3)
    batch = collate([maker.of_context(context, False)])
    taught = shipped.prompt.decode(batch.targets_BT[0][batch.weights_BT[0] == 1.0].tolist())
    assert taught == "".join(" " + question.answer for question in context.questions)


def test_stitching_one_chunk_behind_the_prefix_changes_nothing(shipped: Reader) -> None:
    (text,) = [to_text(demo_documents()[0].document).decode()]
    question = "Who is the mayor?"
    assert shipped.answer([text], question, "full") == shipped.answer([text], question, "reordered")


def test_names_have_the_same_tokens_wherever_they_stand(shipped: Reader) -> None:
    name = shipped.prompt.encode("Velbrin")
    for before in ("# ", "said ", '"', "\n", "("):
        ids = shipped.prompt.encode(before + "Velbrin")
        assert ids[-len(name) :] == name
        assert shipped.prompt.decode(ids) == before + "Velbrin"


def test_every_shipped_document_makes_several_chunks(shipped: Reader) -> None:
    chunk_tokens = yaml.safe_load((ASSETS / "model" / "quilt.yaml").read_text(encoding="utf-8"))["ingestion"][
        "chunk_tokens"
    ]
    splitter = TextSplitter.from_huggingface_tokenizer(shipped.prompt.backend, chunk_tokens)
    for entry in demo_documents():
        chunks = splitter.chunks(to_text(entry.document).decode())
        assert len(chunks) >= 2
        assert all(entry.document.name.lower() in chunk.lower() for chunk in chunks)


@pytest.mark.parametrize("mode", MODES)
def test_the_shipped_model_answers_shipped_questions_from_their_documents(
    shipped: Reader, mode: Mode
) -> None:
    documents = {entry.path: entry.document for entry in demo_documents()}
    splitter = TextSplitter.from_huggingface_tokenizer(shipped.prompt.backend, 96)
    questions = json.loads((ASSETS / "questions.json").read_text(encoding="utf-8"))[:16]
    right = [
        answers(
            shipped.answer(splitter.chunks(to_text(documents[q["document"]]).decode()), q["question"], mode),
            q["answer"],
        )
        for q in questions
    ]
    assert sum(right) >= 14
