"""Trains the demo model: ``python -m services.training.demo --out DIR``.

The same seed and number of steps give the same model, whether trained in one go or in several: every batch depends on the seed and
its step only, and ``DIR/checkpoint.pt`` holds all of the rest. ``--minutes`` ends an invocation early; the next one goes on.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

from services.training.contexts import ContextShape, Layout, cut_passages, draw_context
from services.training.corpus import Worlds
from services.training.names import Split
from services.training.optimizers import Optimizers
from services.training.rows import Batch, Row, RowMaker, collate
from services.training.tokenizer import save_tokenizer, train_tokenizer
from shared.prompt import TEMPLATE_FILE, PromptTemplate, PromptTokenizer

TEMPLATE = PromptTemplate(
    prefix="Answer the question from the documents below.\n\n", chunk="{text}\n\n", question="Question: {question}\nAnswer:"
)
CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the model; equal recipes give equal weights."""

    seed: int = 0
    steps: int = 6000
    vocab_size: int = 1536
    tokenizer_documents: int = 4000
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    tokens_per_step: int = 3072
    lr: float = 4e-3
    questions_per_row: int = 6

    def shape(self, rng: random.Random, step: int) -> ContextShape:
        """From one or two short passages to eight long ones over the first half of the steps."""
        progress = min(1.0, 2 * step / self.steps)
        most = 2 + round(6 * progress)
        longest = 160 + round(240 * progress)
        return ContextShape(rng.randint(1, most), rng.randint(120, longest))

    def repetition_share(self, step: int) -> float:
        return 0.25 if step < self.steps * 0.08 else 0.0


def build_model(recipe: Recipe, end_id: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
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
    )
    return Qwen2ForCausalLM(config)


def sample_texts(seed: int, num_documents: int) -> list[str]:
    """What the tokenizer learns its vocabulary from; the template belongs to it."""
    rng, worlds = random.Random(f"{seed} tokenizer"), Worlds.load()
    texts = [TEMPLATE.prefix]
    for _ in range(num_documents):
        document = worlds.write(rng, rng.choice(list(worlds.kinds)), Split.TRAIN)
        texts += [TEMPLATE.chunk.replace("{text}", p.text) for p in cut_passages(document, Layout.draw(rng), 300)]
        for fact in document.facts.values():
            texts.append(TEMPLATE.question.replace("{question}", rng.choice(fact.questions)) + " " + fact.answer)
    return texts


def draw_batch(recipe: Recipe, maker: RowMaker, step: int) -> Batch:
    """The batch of ``step``: half of its contexts as plain text, half as independent chunks."""
    rng, worlds = random.Random(f"{recipe.seed} step {step}"), Worlds.load()
    if rng.random() < recipe.repetition_share(step):
        return collate(_repetitions(rng, worlds, recipe, maker))
    shape = recipe.shape(rng, step)
    rows: list[Row] = []
    while not rows or (len(rows) + 1) * max(len(row.ids) for row in rows) <= recipe.tokens_per_step:
        context = draw_context(rng, worlds, shape, Split.TRAIN, recipe.questions_per_row)
        rows.append(maker.of_context(context, independent=len(rows) % 2 == 1))
    return collate(rows)


def _repetitions(rng: random.Random, worlds: Worlds, recipe: Recipe, maker: RowMaker) -> list[Row]:
    names = worlds.names(rng, Split.TRAIN)
    kinds = ["place", "person", "year 1200 1999", "number 10 9999"]
    return [
        maker.of_repetition(rng, [names.draw(rng.choice(kinds)) for _ in range(8)], 3) for _ in range(recipe.tokens_per_step // 160)
    ]


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV = model(batch.ids_BT, position_ids=batch.positions_BT, attention_mask=batch.bias_B1TT, use_cache=False).logits
    chosen = batch.weights_BT > 0
    losses = F.cross_entropy(logits_BTV[chosen].float(), batch.targets_BT[chosen], reduction="none")
    weights = batch.weights_BT[chosen]
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def exact_share(model: Any, maker: RowMaker, seed: int, independent: bool, shape: ContextShape, num_rows: int = 24) -> float:
    """Share of answers about held-out names of which every token is the model's first choice: a quick teacher-forced estimate."""
    rng, worlds = random.Random(f"{seed} held out"), Worlds.load()
    contexts = [draw_context(rng, worlds, shape, Split.HELD_OUT, 6) for _ in range(num_rows)]
    right = asked = 0
    for first in range(0, num_rows, 6):
        batch = collate([maker.of_context(context, independent) for context in contexts[first : first + 6]])
        with torch.autocast("cpu", torch.bfloat16):
            logits_BTV = model(
                batch.ids_BT, position_ids=batch.positions_BT, attention_mask=batch.bias_B1TT, use_cache=False
            ).logits
        wrong_BT = (logits_BTV.argmax(-1) != batch.targets_BT) & (batch.weights_BT == 1.0)
        for wrong_T, segments_T, weights_T in zip(wrong_BT, batch.segments_BT, batch.weights_BT, strict=True):
            for segment in segments_T[weights_T == 1.0].unique():
                asked += 1
                right += not wrong_T[segments_T == segment].any()
    return right / asked


def save_model(model: Any, tokenizer: Any, directory: Path) -> None:
    """A directory for stock ``transformers``, weights in bfloat16."""
    import copy

    from transformers import GenerationConfig

    directory.mkdir(parents=True, exist_ok=True)
    stored = copy.deepcopy(model).to(torch.bfloat16)
    stored.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id)
    stored.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    (directory / TEMPLATE_FILE).write_text(json.dumps(asdict(TEMPLATE), indent=2) + "\n", encoding="utf-8")


class Trainer:
    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.tokenizer = train_tokenizer(sample_texts(recipe.seed, recipe.tokenizer_documents), recipe.vocab_size)
        self.maker = RowMaker(PromptTokenizer(self.tokenizer, TEMPLATE), self.tokenizer.eos_token_id)
        self.model = build_model(recipe, self.tokenizer.eos_token_id)
        self.optimizers = Optimizers(self.model, recipe.lr, recipe.steps)
        self.step = 0

    def resume(self) -> None:
        if (self.out / CHECKPOINT).is_file():
            state = torch.load(self.out / CHECKPOINT, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizers.load_state_dict(state["optimizers"])
            self.step = state["step"]

    def save(self) -> None:
        save_model(self.model, self.tokenizer, self.out)
        state = {"model": self.model.state_dict(), "optimizers": self.optimizers.state_dict(), "step": self.step}
        torch.save(state, self.out / (CHECKPOINT + ".new"))
        (self.out / (CHECKPOINT + ".new")).replace(self.out / CHECKPOINT)

    def train_step(self) -> float:
        loss = loss_of(self.model, draw_batch(self.recipe, self.maker, self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers.step(self.step)
        self.step += 1
        return loss.item()

    def report(self, loss: float, elapsed_s: float) -> None:
        shares = [
            exact_share(self.model, self.maker, self.recipe.seed, independent, ContextShape(k, 300))
            for k in (2, 5)
            for independent in (False, True)
        ]
        small_full, small_reused, full, reused = shares
        click.echo(
            f"step {self.step:6d}/{self.recipe.steps}  {elapsed_s / 60:5.1f} min  loss {loss:.3f}  exact, unseen names: "
            f"2 passages {small_full:.2f} full {small_reused:.2f} independent, 5 passages {full:.2f} full {reused:.2f} independent"
        )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of the model and the checkpoint.")
@click.option("--minutes", type=float, default=None, help="Stop after this long, with a checkpoint to go on from.")
@click.option("--steps", type=int, default=Recipe().steps, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--report-every", type=int, default=250, show_default=True, help="Steps between reports and checkpoints.")
def main(out: Path, minutes: float | None, steps: int, seed: int, threads: int, report_every: int) -> None:
    """Trains the demo model on documents invented on the way."""
    torch.set_num_threads(threads)
    trainer = Trainer(Recipe(seed=seed, steps=steps), out)
    trainer.resume()
    click.echo(f"{sum(p.numel() for p in trainer.model.parameters()) / 1e6:.2f} M parameters, from step {trainer.step}")
    began, recent = time.monotonic(), 0.0
    while trainer.step < steps and (minutes is None or time.monotonic() - began < minutes * 60):
        loss = trainer.train_step()
        recent = loss if not recent else 0.98 * recent + 0.02 * loss
        if trainer.step % report_every == 0:
            trainer.report(recent, time.monotonic() - began)
            trainer.save()
    trainer.save()


if __name__ == "__main__":
    main()
