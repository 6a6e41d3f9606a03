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
from services.training.recipe import MODES, TEMPLATE, TrainingRecipe, build_model, draw_batch, sample_texts
from services.training.rows import Batch, RowMaker, collate
from services.training.tokenizer import train_tokenizer
from shared.engine.model.loader import take_over
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.prompt import PromptTokenizer
from shared.whole_files import replacing

CHECKPOINT = "checkpoint.pt"


class Trainer:
    def __init__(self, recipe: TrainingRecipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.tokenizer = train_tokenizer(
            sample_texts(recipe.seed, recipe.tokenizer_documents), recipe.vocab_size, recipe.tokenizer
        )
        self.maker = RowMaker(PromptTokenizer(self.tokenizer, TEMPLATE), self.tokenizer.eos_token_id)
        self.model = build_model(recipe, self.tokenizer.eos_token_id)
        self.driven = take_over(self.model)
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
        with replacing(self.out / CHECKPOINT) as file:
            torch.save(state, file)

    def train_step(self) -> float:
        loss = loss_of(self.driven, draw_batch(self.recipe, self.maker, self.driven.spec, self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers.step(self.step)
        self.step += 1
        return loss.item()

    def report(self, loss: float, elapsed_s: float) -> str:
        shares = ", ".join(self._shares(num_passages) for num_passages in (2, 5))
        return (
            f"step {self.step:6d}/{self.recipe.steps}  {elapsed_s / 60:5.1f} min  loss {loss:.3f}  "
            f"exact, unseen names: {shares}"
        )

    def _shares(self, num_passages: int) -> str:
        shape, seed = ContextShape(num_passages, 300), self.recipe.seed
        shares = ((mode, exact_share(self.driven, self.maker, seed, mode, shape)) for mode in MODES)
        return f"{num_passages} passages " + " ".join(f"{share:.2f} {mode}" for mode, share in shares)


def loss_of(model: LoadedModel, batch: Batch) -> torch.Tensor:
    losses_P = F.cross_entropy(_logits(model, batch), batch.targets_P, reduction="none")
    return (losses_P * batch.weights_P).sum() / batch.weights_P.sum()


@torch.no_grad()
def exact_share(
    model: LoadedModel,
    maker: RowMaker,
    seed: int,
    reuse: ReuseMode,
    shape: ContextShape,
    num_rows: int = 24,
) -> float:
    """Share of answers about held-out names of which every token is the model's first choice: a quick
    teacher-forced estimate."""
    rng, worlds = random.Random(f"{seed} held out"), Worlds.load()
    contexts = [draw_context(rng, worlds, shape, Split.HELD_OUT, 6) for _ in range(num_rows)]
    right: list[bool] = []
    for first in range(0, num_rows, 6):
        rows = [maker.of_context(context, reuse) for context in contexts[first : first + 6]]
        batch = collate(rows, model.spec)
        exact_P = _logits(model, batch).argmax(-1) == batch.targets_P
        right += (bool(exact_P[answer].all()) for answer in batch.answers)
    return sum(right) / len(right)


def _logits(model: LoadedModel, batch: Batch) -> torch.Tensor:
    """Of the batch's predictions."""
    with torch.autocast("cpu", torch.bfloat16):
        return model.logits(model.forward(batch.step).index_select(0, batch.rows_P))


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
