"""Training rows and loop, and the shipped model as stock ``transformers`` reads it."""

from __future__ import annotations

import copy
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
from services.training.rows import CONTEXT_WEIGHT, RowMaker, collate
from services.training.trainer import Trainer
from shared.engine.model.loader import take_over
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from tests.oracles import ORACLES

pytestmark = pytest.mark.usefixtures("one_thread")

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
    return Reader.of_directory(str(ASSETS / "model"))


@pytest.fixture(scope="module")
def driven(shipped: Reader) -> LoadedModel:
    return take_over(copy.deepcopy(shipped.model))


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


def test_a_saved_model_asks_for_no_attention_of_ours(tmp_path: Path) -> None:
    Trainer(TINY, tmp_path).save()
    assert "kvquilt" not in (tmp_path / "config.json").read_text(encoding="utf-8")


def test_a_batch_depends_on_seed_and_step_only(tmp_path: Path) -> None:
    trainer = Trainer(TINY, tmp_path)
    first, again, other = (
        draw_batch(recipe, trainer.maker, trainer.driven.spec, 3)
        for recipe in (TINY, TINY, dataclasses.replace(TINY, seed=1))
    )
    assert first.step.token_ids == again.step.token_ids
    assert torch.equal(first.targets_P, again.targets_P)
    assert first.step.token_ids[:64] != other.step.token_ids[:64]


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_what_a_server_would_compute(shipped: Reader, driven: LoadedModel, mode: Mode) -> None:
    """Their logits are those with which the stock model, by the server's layout, begins every answer: as a
    row's answers stand beside each other, so each is as if it were alone."""
    maker = RowMaker(shipped.prompt, shipped.model.config.eos_token_id)
    context = draw_context(random.Random(1), Worlds.load(), ContextShape(4, 200), Split.TRAIN, 4)
    batch = collate([maker.of_context(context, ReuseMode(mode))], driven.spec)
    with torch.no_grad():
        logits_PV = driven.logits(driven.forward(batch.step)[batch.rows_P])
    chunks = [shipped.prompt.encode_chunk(passage.text) for passage in context.passages]
    assert len(batch.answers) == len(context.questions) == 4
    for question, answer in zip(context.questions, batch.answers, strict=True):
        ids = batch.targets_P[answer].tolist()
        oracle_GV = ORACLES[mode](
            shipped.model,
            shipped.prompt.prefix_ids,
            chunks,
            shipped.prompt.encode_question(question.text),
            ids,
        )
        torch.testing.assert_close(logits_PV[answer], oracle_GV, atol=1e-3, rtol=0)
        assert shipped.prompt.decode(ids) == " " + question.answer


@pytest.mark.parametrize("mode", MODES)
def test_rows_supervise_answers_in_full_and_every_chunk_a_little(
    shipped: Reader, driven: LoadedModel, mode: Mode
) -> None:
    maker = RowMaker(shipped.prompt, shipped.model.config.eos_token_id)
    context = draw_context(random.Random(2), Worlds.load(), ContextShape(2, 200), Split.TRAIN, 3)
    batch = collate([maker.of_context(context, ReuseMode(mode))], driven.spec)
    in_full = batch.weights_P == 1.0
    taught = shipped.prompt.decode(batch.targets_P[in_full].tolist())
    assert taught == "".join(" " + question.answer for question in context.questions)
    runs = [shipped.prompt.prefix_ids, *(shipped.prompt.encode_chunk(p.text) for p in context.passages)]
    assert batch.targets_P[~in_full].tolist() == [token for run in runs for token in run[1:]]
    assert batch.weights_P[~in_full].unique().tolist() == [pytest.approx(CONTEXT_WEIGHT)]


def test_repeated_names_are_predicted_from_the_second_time_on(shipped: Reader, driven: LoadedModel) -> None:
    maker = RowMaker(shipped.prompt, shipped.model.config.eos_token_id)
    names = ["Velbrin", "Halford", "Ostell"]
    batch = collate([maker.of_repetition(random.Random(0), names, 3)], driven.spec)
    once = sum(len(shipped.prompt.encode(" " + name)) for name in names)
    assert len(batch.targets_P) == 2 * once
    assert batch.rows_P.tolist() == list(range(once - 1, 3 * once - 1))
    assert sorted(shipped.prompt.decode(batch.targets_P[:once].tolist()).split()) == sorted(names)


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
