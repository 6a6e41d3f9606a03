"""The command line: `kvquilt up`, `ingest`, `sync`, `ask`, `chat`, `documents`, `delete`, `key`,
`models`, `gate`, `eval`, `train`, `feedback`, `store`, `retrieval`, `status`, `trace`, `doctor`, `mcp`,
`top`, `size`, `completion`, `down`, `demo`.

Commands only translate: options into values, values into what is printed. Errors are one line on standard
error and an exit code: 2 wrong input, 3 not found, 4 try again, 1 anything else, 130 interrupted. Here are
the commands that start and stop; the others are in ``document_commands``, ``sync_command``,
``ask_command``, ``chat_command``, ``mcp_command``, ``explore_command``, ``key_commands``,
``model_commands``, ``gate_command``, ``eval_command``, ``train_command``, ``feedback_commands``,
``store_commands``, ``retrieval_commands``, ``trace_command``, ``doctor_command``, ``top_command``,
``size_command`` and ``completion_command``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console

from cluster.cli.ask_command import ask
from cluster.cli.audit_command import audit
from cluster.cli.chat_command import chat
from cluster.cli.completion_command import completion
from cluster.cli.doctor_command import doctor
from cluster.cli.document_commands import delete, documents, ingest
from cluster.cli.eval_command import evaluate
from cluster.cli.explore_command import explore
from cluster.cli.feedback_commands import feedback
from cluster.cli.gate_command import gate
from cluster.cli.key_commands import key
from cluster.cli.mcp_command import mcp
from cluster.cli.model_commands import models
from cluster.cli.output import output_option
from cluster.cli.retrieval_commands import retrieval
from cluster.cli.session import EXISTING_FILE, Commands, Session
from cluster.cli.size_command import size
from cluster.cli.store_commands import store
from cluster.cli.sync_command import sync
from cluster.cli.top_command import top
from cluster.cli.trace_command import trace
from cluster.cli.train_command import train
from shared.admission.priority import HIGHEST, LOWEST
from shared.config import API_KEY

_PEM = click.Path(dir_okay=False, exists=True, resolve_path=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Where everything is kept. Default: KVQUILT_DATA_DIR, else ~/.local/share/kvquilt.",
)
@click.option(
    "--target",
    default="",
    metavar="HOST:PORT",
    help="A running system, instead of the local one; grpcs://HOST:PORT by TLS.",
)
@click.option(
    "--ca",
    type=EXISTING_FILE,
    help="PEM file of the authorities that are trusted by TLS. Default: SSL_CERT_FILE, else the usual ones.",
)
@click.option(
    "--tenant",
    default="",
    help="Whose documents, where nobody has a key, or for the system's owner; of others the key says it.",
)
@click.option(
    "--key",
    envvar=API_KEY,
    show_envvar=True,
    default="",
    help="Who calls, where callers have keys: a key or token. Others of this machine see options: rather use "
    "the variable or --key-file. The owner of the local system needs none.",
)
@click.option("--key-file", type=EXISTING_FILE, help="A file that holds it.")
@click.option(
    "--priority",
    type=click.IntRange(HIGHEST, LOWEST),
    default=0,
    help="Among what waits of the same tenant: lower goes earlier. 100 for what runs at night.",
)
@click.version_option(package_name="kvquilt")
@click.pass_context
def main(
    ctx: click.Context,
    data_dir: Path | None,
    target: str,
    ca: Path | None,
    tenant: str,
    key: str,
    key_file: Path | None,
    priority: int,
) -> None:
    """Answers questions from your documents without reading them again: their KV is computed once, stored,
    and reused in any order.

    \b
    kvquilt up                                         start the services on this machine
    kvquilt ingest ./docs --collection handbook        documents in; run it again at any time
    kvquilt sync ./docs -c handbook --delete           the same, and what has vanished out
    kvquilt ask "Who signed the lease?" -c handbook    an answer with its sources
    kvquilt down                                       stop them
    """
    from cluster.paths import default_data_dir

    where = data_dir.expanduser().absolute() if data_dir else default_data_dir(os.environ)
    ctx.obj = Session(
        where,
        data_dir is not None,
        target,
        tenant,
        Console(highlight=False),
        Console(stderr=True, highlight=False),
        key_file.read_text(encoding="utf-8").strip() if key_file else key,
        str(ca or ""),
        priority,
    )


@main.command()
@click.option(
    "--model",
    help="A model directory, a GGUF file, a Hugging Face id, `smollm2` or `demo`; see `kvquilt models`. "
    "Default: smollm2, where its package is installed, else demo.",
)
@click.option(
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="A quilt.yaml; see docs/configuration.md.",
)
@click.option("--grpc-port", type=int, help="Default 9000.")
@click.option("--http-port", type=int, help="Default 8000; OpenAI's clients, and health checks.")
@click.option("--tls-cert", type=_PEM, help="PEM file; callers are answered by TLS then.")
@click.option("--tls-key", type=_PEM, help="Its private key.")
@output_option()
@click.pass_obj
def up(
    session: Session,
    model: str | None,
    config_path: Path | None,
    grpc_port: int | None,
    http_port: int | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Start the services on this machine.

    \b
    kvquilt up
    kvquilt up --model Qwen/Qwen2.5-0.5B-Instruct
    kvquilt up --model ./Qwen3-0.6B-Q8_0.gguf        converted once, into the cache
    kvquilt --data-dir /srv/kv up --config quilt.yaml
    """
    from cluster.cli.model_choice import served_config
    from cluster.cli.startup import start_progress
    from cluster.local import launcher

    data_dir = str(session.data_dir) if session.data_dir_chosen else None
    options = {"model": model, "data_dir": data_dir, "grpc_port": grpc_port, "http_port": http_port}
    options |= {"tls_cert": tls_cert, "tls_key": tls_key}
    config = served_config(config_path, options, session.out)
    with start_progress(session.out) as on_progress:
        state = launcher.start(config, on_progress)
    told = {"target": state.target, "http": state.http, "model": config.gateway.http.model}
    told |= {"data_dir": config.data_dir, "log": state.log_path}
    session.tell(told | {"addresses": state.addresses})
    session.out.print(
        f"kvquilt is ready at {state.target}; data in {config.data_dir}; log in {state.log_path}",
        soft_wrap=True,
    )
    session.out.print(
        f"OpenAI's clients: base_url={state.http}/v1, model {config.gateway.http.model}", soft_wrap=True
    )
    for name, address in state.addresses.items():
        session.out.print(f"{name} is not started here: the one at {address} is used", soft_wrap=True)
    session.out.print("next: kvquilt ingest ./docs --collection handbook", style="dim")


@main.command()
@output_option()
@click.pass_obj
def down(session: Session) -> None:
    """Stop the services on this machine. What was ingested stays; answers on their way are finished first,
    within every service's drain_s."""
    from cluster.local import launcher

    with session.out.status("finishing what was asked, and stopping"):
        stopped = launcher.stop(session.data_dir)
    session.tell({"stopped": stopped}, "stopped" if stopped else f"nothing is running on {session.data_dir}")


@main.command()
@output_option()
@click.pass_obj
def status(session: Session) -> None:
    """The state of every service, and which collections are not made as documents are now (another model,
    prompt or kv_context). Exit code 1 when a service is not ready."""
    from cluster.cli.console import status_table
    from shared.clients.doors import rag_client

    services = session.ask(rag_client, lambda rag: rag.status(session.context(15_000)))
    session.tell(
        {"target": session.target, "http": session.http, "services": list(map(dataclasses.asdict, services))},
        f"kvquilt at {session.target}",
    )
    if session.http:
        session.out.print(f"OpenAI's clients: base_url={session.http}/v1", soft_wrap=True)
    session.out.print(status_table(services))
    if not all(service.ready for service in services):
        sys.exit(1)


@main.command()
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    default=Path("build/demo.json"),
    help="Where the report goes.",
)
@click.option("--keep", is_flag=True, help="Leave the services running afterwards.")
@output_option()
@click.pass_obj
def demo(session: Session, json_path: Path, keep: bool) -> None:
    """Start everything in build/demo, ingest the shipped documents, ask them, show what reuse bought, take
    everything down; then let the real model, SmolLM2, answer about the project's own documentation."""
    from cluster.local.demo import run_demo

    run_demo(session.out, json_path, keep)
    if session.as_json:
        session.tell(json.loads(json_path.read_text(encoding="utf-8")))


for command in (
    *(ingest, sync, ask, chat, explore, documents, delete, key, models),
    *(gate, evaluate, train, feedback, store, retrieval, trace, doctor, audit, mcp, top, size, completion),
):
    main.add_command(command)

if __name__ == "__main__":
    main()
