"""The training loop's state: model, optimizers and step, resumable from a checkpoint; and the model as a
directory."""

from __future__ import annotations

import copy
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from services.training.contexts import ContextShape, draw_context
from services.training.corpus import Worlds
from services.training.names import Split
from services.training.optimizers import Optimizers
from services.training.recipe import TEMPLATE, TrainingRecipe, build_model, draw_batch, sample_texts
from services.training.rows import Batch, RowMaker, collate
from services.training.tokenizer import train_tokenizer
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer

CHECKPOINT = "checkpoint.pt"


class Trainer:
    def __init__(self, recipe: TrainingRecipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.tokenizer = train_tokenizer(
            sample_texts(recipe.seed, recipe.tokenizer_documents), recipe.vocab_size, recipe.tokenizer
        )
        self.maker = RowMaker(PromptTokenizer(self.tokenizer, TEMPLATE), self.tokenizer.eos_token_id)
        self.model = build_model(recipe, self.tokenizer.eos_token_id)
        self.optimizers = Optimizers(self.model, recipe.lr, recipe.steps)
        self.step = 0

    def resume(self) -> None:
        """Goes on from the checkpoint in the output directory, if there is one. More or fewer steps may be
        asked for than before.

        Raises:
            ConfigError: the checkpoint was made by another recipe.
        """
        if (self.out / CHECKPOINT).is_file():
            state = torch.load(self.out / CHECKPOINT, weights_only=True)
            if state["recipe"] | {"steps": self.recipe.steps} != asdict(self.recipe):
                raise ConfigError(f"{self.out / CHECKPOINT}: was made by another recipe: {state['recipe']}")
            self.model.load_state_dict(state["model"])
            self.optimizers.load_state_dict(state["optimizers"])
            self.step = state["step"]

    def begin_with(self, directory: Path, step: int) -> None:
        """Instead of random weights those of a model directory, as if it had been trained up to ``step``.

        Raises:
            ConfigError: its tokenizer is another one.
        """
        from transformers import AutoModelForCausalLM

        begun = PromptTokenizer.of_model(str(directory))
        if begun is None or not self.tokenizer.get_vocab().items() <= begun.tokenizer.get_vocab().items():
            raise ConfigError(
                f"{directory}: its tokenizer is not the one that this recipe makes; begin without it"
            )
        self.model.load_state_dict(
            AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
        )
        self.step = step

    def save(self) -> None:
        save_model(self.model, self.tokenizer, self.out, self.recipe.suitable_settings)
        state = {
            "model": self.model.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "step": self.step,
            "recipe": asdict(self.recipe),
        }
        written = self.out / (CHECKPOINT + ".new")
        torch.save(state, written)
        written.replace(self.out / CHECKPOINT)

    def train_step(self) -> float:
        loss = loss_of(self.model, draw_batch(self.recipe, self.maker, self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers.step(self.step)
        self.step += 1
        return loss.item()

    def report(self, loss: float, elapsed_s: float) -> str:
        shares = [
            exact_share(self.model, self.maker, self.recipe.seed, independent, ContextShape(k, 300))
            for k in (2, 5)
            for independent in (False, True)
        ]
        small_full, small_reused, full, reused = shares
        return (
            f"step {self.step:6d}/{self.recipe.steps}  {elapsed_s / 60:5.1f} min  loss {loss:.3f}  "
            "exact, unseen names: "
            f"2 passages {small_full:.2f} full {small_reused:.2f} independent, 5 passages {full:.2f} "
            f"full {reused:.2f} independent"
        )


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    logits_BTV = _logits(model, batch)
    chosen = batch.weights_BT > 0
    losses = F.cross_entropy(logits_BTV[chosen].float(), batch.targets_BT[chosen], reduction="none")
    weights = batch.weights_BT[chosen]
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def exact_share(
    model: Any, maker: RowMaker, seed: int, independent: bool, shape: ContextShape, num_rows: int = 24
) -> float:
    """Share of answers about held-out names of which every token is the model's first choice: a quick
    teacher-forced estimate."""
    rng, worlds = random.Random(f"{seed} held out"), Worlds.load()
    contexts = [draw_context(rng, worlds, shape, Split.HELD_OUT, 6) for _ in range(num_rows)]
    right = asked = 0
    for first in range(0, num_rows, 6):
        batch = collate([maker.of_context(context, independent) for context in contexts[first : first + 6]])
        wrong_BT = (_logits(model, batch).argmax(-1) != batch.targets_BT) & (batch.weights_BT == 1.0)
        for wrong_T, segments_T, weights_T in zip(wrong_BT, batch.segments_BT, batch.weights_BT, strict=True):
            for segment in segments_T[weights_T == 1.0].unique():
                asked += 1
                right += not wrong_T[segments_T == segment].any()
    return right / asked


def _logits(model: Any, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV: torch.Tensor = model(
            batch.ids_BT, position_ids=batch.positions_BT, attention_mask=batch.bias_B1TT, use_cache=False
        ).logits
    return logits_BTV


def save_model(model: Any, tokenizer: Any, directory: Path, settings: str) -> None:
    """A directory for stock ``transformers``, weights in bfloat16. ``settings``: those that suit it, if there
    are any."""
    from transformers import GenerationConfig

    directory.mkdir(parents=True, exist_ok=True)
    stored = copy.deepcopy(model).to(torch.bfloat16)
    stored.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id
    )
    stored.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    TEMPLATE.write(directory)
    if settings:
        (directory / "quilt.yaml").write_text(settings, encoding="utf-8")
