"""The auxiliary model: its tokenizer, what it is trained on, and the shipped one as the selection loads
it."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
import torch

from cluster.gate.answering import Models
from cluster.gate.bench import QualityBench
from cluster.gate.modes import Arm, ClipSetting, Comparison
from cluster.gate.tasks import TaskKind
from cluster.gate.trials import Shapes, draw_trial
from services.ingestion.config import IngestionConfig
from services.training.contexts import ContextShape
from services.training.corpus import Worlds
from services.training.cross_chunk import LEAST_PASSAGES, draw_cross_chunk
from services.training.names import Split
from services.training.recipe import AUXILIARY, PRIMARY, sample_texts
from services.training.tokenizer import train_tokenizer
from services.training.trainer import Trainer
from shared.engine import load_model
from shared.engine_config import EngineConfig
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.selection.auxiliary import Auxiliary, load_auxiliary
from shared.selection.scoring import EngineScorer

pytestmark = pytest.mark.usefixtures("one_thread")

ASSETS = Path(__file__).parents[3] / "cluster" / "demo_assets"
GAIN = ASSETS / "model" / "auxiliary-gain"
TEXTS = [
    "The mayor of Velbrin is Toma Keldar.\n\n",
    "Eine Brücke über den Fluß, 1.024 Meter",
    "日本語のテキスト、русский текст, عربى",
    "👩‍👩‍👧 e\u0301 \t\u00a0 <|end|> <0x0A> <unk>",
    " ",
    "",
]
TINY = dataclasses.replace(
    AUXILIARY,
    steps=2,
    vocab_size=420,
    tokenizer_documents=40,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
)


@pytest.fixture(scope="module")
def shipped() -> Auxiliary:
    return load_auxiliary(str(ASSETS / "model" / "auxiliary"))


@pytest.mark.parametrize("text", TEXTS)
def test_the_auxiliary_tokenizer_spells_what_it_has_no_piece_for(text: str, shipped: Auxiliary) -> None:
    ids = shipped.prompts.encode(text)
    assert shipped.prompts.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False) == text
    assert shipped.tokenizer.tokenize(text).token_ids == ids


def test_the_unigram_vocabulary_is_the_same_every_time() -> None:
    texts = sample_texts(0, 200)
    assert (
        train_tokenizer(texts, 600, "unigram").get_vocab()
        == train_tokenizer(texts, 600, "unigram").get_vocab()
    )


def test_names_have_the_same_tokens_wherever_they_stand(shipped: Auxiliary) -> None:
    name = shipped.prompts.encode("Velbrin")
    for before in ("# ", "said ", '"', "\n", "("):
        assert shipped.prompts.encode(before + "Velbrin")[-len(name) :] == name


def test_a_context_never_has_fewer_passages_than_two_documents_need() -> None:
    for seed in range(30):
        shape = ContextShape(seed % 7 + 1, 200)
        context = draw_cross_chunk(random.Random(seed), Worlds.load(), shape, Split.TRAIN, 6)
        assert LEAST_PASSAGES <= len(context.passages) <= max(LEAST_PASSAGES, shape.num_passages)
        assert context.questions


def test_training_goes_on_from_the_weights_of_a_model_directory(tmp_path: Path) -> None:
    first = Trainer(TINY, tmp_path / "first")
    first.train_step()
    first.model.to(torch.bfloat16).float()
    first.save()
    second = Trainer(TINY, tmp_path / "second")
    second.begin_with(tmp_path / "first", 1)
    assert second.step == 1
    assert all(
        torch.equal(weight, second.model.state_dict()[name])
        for name, weight in first.model.state_dict().items()
    )
    with pytest.raises(ConfigError, match="tokenizer is not the one"):
        Trainer(dataclasses.replace(TINY, vocab_size=430), tmp_path / "third").begin_with(
            tmp_path / "first", 1
        )


def test_the_shipped_auxiliary_is_smaller_than_the_primary_and_of_another_family(shipped: Auxiliary) -> None:
    primary = PromptTokenizer.of_model(str(ASSETS / "model"))
    assert primary is not None
    assert isinstance(shipped.scorer, EngineScorer)
    assert (ASSETS / "model" / "auxiliary" / "model.safetensors").stat().st_size < (
        ASSETS / "model" / "model.safetensors"
    ).stat().st_size / 2
    kinds = [json.loads(one.backend.to_str())["model"]["type"] for one in (shipped.prompts, primary)]
    assert kinds == ["Unigram", "BPE"]
    assert shipped.prompts.template == primary.template
    assert AUXILIARY.hidden_size < PRIMARY.hidden_size


def test_the_shipped_auxiliary_looks_where_the_primary_looks() -> None:
    """More than chance would have it: of the best fifth of the tokens, two independent choices share a
    ninth."""
    primary = str(ASSETS / "model")
    models = Models(primary, f"{primary}/auxiliary", IngestionConfig(primary), likeness=True)
    bench = QualityBench(models, Comparison(), max_tokens=1)
    asked = [(kind, Arm(ReuseMode.QUERY_ATTENTION, 0.2)) for kind in (TaskKind.SPREAD, TaskKind.SINGLE)]
    wanted = [(draw_trial(5, number, Shapes()), asked) for number in range(6)]
    told = [a for answers in bench.ask(wanted) for a in answers]
    bench.close()
    overlaps = [answer.agreement["stitched"][1] for answer in told]
    assert sum(overlaps) / len(overlaps) > 2 / 9


def test_the_tuned_auxiliary_is_the_one_that_its_card_tells_of() -> None:
    config, card = EngineConfig(dtype="bfloat16"), (GAIN / "README.md").read_text(encoding="utf-8")
    untuned, tuned = (load_auxiliary(str(path), config) for path in (ASSETS / "model" / "auxiliary", GAIN))
    for model in (tuned.scorer, untuned.scorer, load_model(str(ASSETS / "model"), dtype="bfloat16")):
        assert model.fingerprint in card
    assert tuned.prompts.hash == untuned.prompts.hash
    assert tuned.prompts.template == untuned.prompts.template


def test_the_tuned_auxiliary_joins_isolated_documents() -> None:
    """With a tenth of the tokens computed anew, where one chunk names the thing and another one states the
    fact."""
    primary, clip = str(ASSETS / "model"), Arm(ReuseMode.CACHECLIP, 0.1, ClipSetting())
    ingestion = IngestionConfig(primary, kv_context=KvContext.NONE)
    wanted = [(draw_trial(5, n, Shapes()), [(TaskKind.CROSS_DOCUMENT, clip)]) for n in range(8)]
    right = []
    for auxiliary in (f"{primary}/auxiliary", str(GAIN)):
        models = Models(primary, auxiliary, ingestion, dtype="float32")
        bench = QualityBench(models, Comparison(), max_tokens=16)
        right.append([a.correct for answers in bench.ask(wanted) for a in answers])
        bench.close()
    untuned, tuned = (sum(told) / len(told) for told in right)
    assert tuned > untuned + 0.2
