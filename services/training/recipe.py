"""Decides what the demo's models are: shape, template, and what they see at each step. Equal recipes give
equal weights."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import torch

from services.training.contexts import ContextShape, TextLayout, cut_passages, draw_context
from services.training.corpus import Worlds
from services.training.cross_chunk import LEAST_PASSAGES, draw_cross_chunk
from services.training.names import Split
from services.training.rows import Batch, Row, RowMaker, collate
from services.training.tokenizer import Family
from shared.engine.model.spec import ModelSpec
from shared.generation.modes import ReuseMode
from shared.prompt_template import PromptTemplate

TEMPLATE = PromptTemplate(
    prefix="Answer the question from the documents below.\n\n",
    chunk="{text}\n\n",
    question="Question: {question}\nAnswer:",
)
SUITABLE_SETTINGS = """\
# What this model reads best. Three passages: each further one is about something else, which it may mistake
# for what was asked.
ingestion:
  chunk_tokens: 96
gateway:
  k: 3
generator:
  max_tokens: 48
"""


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """``spread_full``, ``spread_reordered``: the shares of contexts whose evidence is spread over passages,
    among rows of either mode."""

    seed: int = 0
    steps: int = 9000
    model_type: Literal["qwen2", "llama"] = "qwen2"
    tokenizer: Family = "bpe"
    vocab_size: int = 1536
    tokenizer_documents: int = 4000
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    tokens_per_step: int = 3072
    lr: float = 4e-3
    questions_per_row: int = 12
    spread_full: float = 0.5
    spread_reordered: float = 0.0
    suitable_settings: str = SUITABLE_SETTINGS

    def shape(self, rng: random.Random, step: int) -> ContextShape:
        """From one or two short passages to seven long ones over the first half of the steps."""
        progress = min(1.0, 2 * step / self.steps)
        most = 2 + round(5 * progress)
        longest = 160 + round(180 * progress)
        return ContextShape(rng.randint(1, most), rng.randint(120, longest))

    def repetition_share(self, step: int) -> float:
        return 0.25 if step < self.steps * 0.08 else 0.0


MODES = (ReuseMode.FULL, ReuseMode.REORDERED)
PRIMARY = TrainingRecipe()
AUXILIARY = TrainingRecipe(
    steps=6000,
    model_type="llama",
    tokenizer="unigram",
    vocab_size=1024,
    hidden_size=96,
    intermediate_size=256,
    num_layers=3,
    num_heads=3,
    num_kv_heads=3,
    tokens_per_step=2048,
    questions_per_row=8,
    spread_reordered=0.4,
    suitable_settings="",
)
"""Smaller, with a tokenizer of another family, which stock ``transformers`` loads as it is for Llama, but not
for Qwen2. It shall find where evidence may be, so it reads what is spread over passages in either kind of
row."""


def build_model(recipe: TrainingRecipe, end_id: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(recipe.seed)
    config = AutoConfig.for_model(
        recipe.model_type,
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=end_id,
        # as Qwen2 has; else it learns late
        **({"attention_bias": True} if recipe.model_type == "llama" else {}),
    )
    return AutoModelForCausalLM.from_config(config)


def sample_texts(seed: int, num_documents: int) -> list[str]:
    """Returns what the tokenizer learns its vocabulary from; the template belongs to it."""
    rng, worlds = random.Random(f"{seed} tokenizer"), Worlds.load()
    texts = [TEMPLATE.prefix]
    for _ in range(num_documents):
        document = worlds.write(rng, rng.choice(list(worlds.kinds)), Split.TRAIN)
        texts += [
            TEMPLATE.chunk.replace("{text}", p.text)
            for p in cut_passages(document, TextLayout.draw(rng), 300)
        ]
        for fact in document.facts.values():
            texts.append(
                TEMPLATE.question.replace("{question}", rng.choice(fact.questions)) + " " + fact.answer
            )
    return texts


def draw_batch(recipe: TrainingRecipe, maker: RowMaker, spec: ModelSpec, step: int) -> Batch:
    """The batch of ``step``: half of its contexts as plain text, half as chunks that are reused."""
    rng, worlds = random.Random(f"{recipe.seed} step {step}"), Worlds.load()
    if rng.random() < recipe.repetition_share(step):
        return collate(_repetitions(rng, worlds, recipe, maker), spec)
    shape = recipe.shape(rng, step)
    rows: list[Row] = []
    while not rows or (len(rows) + 1) * max(row.num_tokens for row in rows) <= recipe.tokens_per_step:
        reuse = MODES[(step + len(rows)) % 2]
        spread = rng.random() < (recipe.spread_reordered if reuse.row.stored else recipe.spread_full)
        draw = draw_cross_chunk if spread and shape.num_passages >= LEAST_PASSAGES else draw_context
        rows.append(maker.of_context(draw(rng, worlds, shape, Split.TRAIN, recipe.questions_per_row), reuse))
    return collate(rows, spec)


def _repetitions(rng: random.Random, worlds: Worlds, recipe: TrainingRecipe, maker: RowMaker) -> list[Row]:
    names = worlds.names(rng, Split.TRAIN)
    kinds = ["place", "person", "year 1200 1999", "number 10 9999"]
    return [
        maker.of_repetition(rng, [names.draw(rng.choice(kinds)) for _ in range(8)], 3)
        for _ in range(recipe.tokens_per_step // 160)
    ]
