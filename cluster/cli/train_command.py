"""`kvquilt train`: makes a model at home in stored KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from cluster.cli.session import EXISTING_FILE, Session
from shared.kv_types import KvContext


@click.group()
def train() -> None:
    """Train what makes reuse better. Nothing needs to run."""


@train.command()
@click.option(
    "--model", help="As of `kvquilt up`. Default: smollm2, where its package is installed, else demo."
)
@click.option(
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="The quilt.yaml that the model is served with: its prompt, chunks and type of weights count.",
)
@click.option(
    "--kv-context",
    type=click.Choice([context.value for context in KvContext]),
    help="What chunks are computed behind. Default: ingestion.kv_context.",
)
@click.option(
    "--data",
    type=EXISTING_FILE,
    help="Documents and questions, one JSON object per line; see docs/training.md.",
)
@click.option(
    "--invented", type=click.IntRange(min=2), help="Instead: so many contexts of invented documents."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the adapter, its checkpoint, and what is computed once. Begins anew or goes on there.",
)
@click.option("--updates", type=int, default=200, show_default=True, help="Of the adapter's weights.")
@click.option(
    "--contexts-per-update", type=int, default=4, show_default=True, help="All their questions count."
)
@click.option("--chunks", type=click.IntRange(min=1), default=6, show_default=True, help="Most in a context.")
@click.option(
    "--questions", type=click.IntRange(min=1), default=8, show_default=True, help="Most about one context."
)
@click.option("--rank", type=int, default=16, show_default=True)
@click.option("--alpha", type=float, default=32.0, show_default=True, help="alpha / rank · B·A·x is added.")
@click.option(
    "--targets", default="", help="Linear layers: q_proj,v_proj. Default: all of attention and MLP."
)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Highest rate of AdamW.")
@click.option(
    "--reuse",
    type=click.Choice(["reordered", "composite"]),
    default="reordered",
    show_default=True,
    help="The mode that it is trained for.",
)
@click.option(
    "--top-k", type=int, default=128, show_default=True, help="Tokens kept of the teacher's choice."
)
@click.option(
    "--answer-tokens", type=int, default=32, show_default=True, help="Longest answer of the teacher."
)
@click.option(
    "--held-out", type=float, default=0.1, show_default=True, help="Share of the contexts to evaluate on."
)
@click.option("--evaluate-every", type=int, default=20, show_default=True, help="Updates.")
@click.option("--checkpoint-every", type=int, default=20, show_default=True, help="Updates.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch.")
@click.pass_obj
def adapter(
    session: Session,
    model: str | None,
    config_path: Path | None,
    kv_context: str | None,
    data: Path | None,
    invented: int | None,
    out: Path,
    updates: int,
    contexts_per_update: int,
    chunks: int,
    questions: int,
    rank: int,
    alpha: float,
    targets: str,
    lr: float,
    reuse: str,
    top_k: int,
    answer_tokens: int,
    held_out: float,
    evaluate_every: int,
    checkpoint_every: int,
    seed: int,
    threads: int,
) -> None:
    """Train an adapter (LoRA) for the rows of requests, by self-distillation.

    The model itself, reading whole blocks under full, is the teacher; the adapter learns to come to the same
    answers over stored chunks. Stored KV and full stay as they are, bit by bit. Ctrl-C leaves a checkpoint,
    and the same command goes on from there, to the weights that it would have come to without it.

    \b
    kvquilt train adapter --model demo --invented 200 --out adapters/demo
    kvquilt train adapter --model smollm2 --data handbook.jsonl --out adapters/handbook
    """
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from cluster.cli.model_choice import served_config
    from cluster.training.adapter import AdapterTask
    from cluster.training.adapter import train as train_adapter
    from cluster.training.examples import invented_examples, read_examples
    from services.training.adapter.settings import AdapterSettings
    from shared.errors import ConfigError
    from shared.generation.modes import ReuseMode

    if (data is None) == (invented is None):
        raise ConfigError("--data: name a file, or say --invented N, one of both")
    settings = AdapterSettings(
        seed=seed,
        updates=updates,
        contexts_per_update=contexts_per_update,
        rank=rank,
        alpha=alpha,
        targets=tuple(name.strip() for name in targets.split(",") if name.strip()),
        lr=lr,
        reuse=ReuseMode(reuse),
        top_k=top_k,
        answer_tokens=answer_tokens,
        held_out=held_out,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
    )
    examples = read_examples(data) if data is not None else invented_examples(seed, invented or 0)
    options = {"model": model, "ingestion": kv_context and {"kv_context": kv_context}}
    config = served_config(config_path, options, session.out)
    torch.set_num_threads(threads)
    task = AdapterTask(
        config.ingestion,
        replace(settings, stop=config.generator.stop),
        out,
        base=str(config.model),
        dtype=config.generator.engine.dtype,
        device=config.generator.engine.device,
        num_chunks=chunks,
        num_questions=questions,
    )

    def say(line: str) -> None:
        session.out.print(line, soft_wrap=True)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=session.err, transient=True) as bar:
        asked = bar.add_task("asking the teacher")
        trainer = task.trainer(examples, lambda done, of: bar.update(asked, completed=done, total=of), say)
    train_adapter(trainer, say)
    say(f"serve it: generator.engine.adapters: {{{out.name}: {out}}}, and kvquilt ask … --adapter {out.name}")
