"""Trains the demo's models: ``python -m services.training.demo [--auxiliary] --out DIR``.

The same seed and number of steps give the same model, whether trained in one go or in several: every batch
depends on the seed and its step only, and ``DIR/checkpoint.pt`` holds all of the rest. ``--minutes`` ends an
invocation early; the next one goes on.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click
import torch
from transformers.utils import logging

from services.training.recipe import AUXILIARY, PRIMARY
from services.training.trainer import Trainer
from shared.errors import ConfigError


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Directory of the model and the checkpoint."
)
@click.option(
    "--auxiliary", is_flag=True, help="The model that selects tokens, instead of the one that answers."
)
@click.option(
    "--begin-with",
    type=click.Path(path_type=Path, exists=True),
    help="Weights to begin with, of a model directory.",
)
@click.option(
    "--begin-at",
    type=int,
    default=0,
    show_default=True,
    help="The step that these weights are taken to have reached.",
)
@click.option(
    "--minutes", type=float, default=None, help="Stop after this long, with a checkpoint to go on from."
)
@click.option(
    "--steps",
    type=int,
    default=None,
    help=f"Default: {PRIMARY.steps}, of the auxiliary model {AUXILIARY.steps}.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option(
    "--report-every", type=int, default=250, show_default=True, help="Steps between reports and checkpoints."
)
def main(
    out: Path,
    auxiliary: bool,
    begin_with: Path | None,
    begin_at: int,
    minutes: float | None,
    steps: int | None,
    seed: int,
    threads: int,
    report_every: int,
) -> None:
    """Trains a demo model on documents invented on the way."""
    torch.set_num_threads(threads)
    logging.disable_progress_bar()
    recipe = AUXILIARY if auxiliary else PRIMARY
    recipe = dataclasses.replace(recipe, seed=seed, steps=recipe.steps if steps is None else steps)
    trainer = Trainer(recipe, out)
    try:
        if begin_with is not None:
            trainer.begin_with(begin_with, begin_at)
        trainer.resume()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"{sum(p.numel() for p in trainer.model.parameters()) / 1e6:.2f} M parameters, from step "
        f"{trainer.step}"
    )
    began, recent = time.monotonic(), 0.0
    while trainer.step < recipe.steps and (minutes is None or time.monotonic() - began < minutes * 60):
        loss = trainer.train_step()
        recent = loss if not recent else 0.98 * recent + 0.02 * loss
        if trainer.step % report_every == 0:
            click.echo(trainer.report(recent, time.monotonic() - began))
            trainer.save()
    trainer.save()


if __name__ == "__main__":
    main()
