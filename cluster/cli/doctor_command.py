"""`kvquilt doctor`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.cli.output import output_option
from cluster.cli.session import EXISTING_FILE, FILE, Session
from shared.errors import KvquiltError

if TYPE_CHECKING:
    from cluster.doctor.diagnosis import Diagnosis
    from shared.clients.health import ServiceHealth

_STATUS_MS = 15_000
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option(
    "--config", "config_path", type=EXISTING_FILE, help="The quilt.yaml that `kvquilt up` is given."
)
@click.option("--model", help="As of `kvquilt up`.")
@click.option("--grpc-port", type=int, help="As of `kvquilt up`.")
@click.option("--http-port", type=int, help="As of `kvquilt up`.")
@click.option(
    "--bundle",
    type=FILE,
    metavar="FILE.tar.gz",
    help="Pack versions, settings, status, metrics and logs for whoever helps, without content and secrets.",
)
@output_option(with_flag=True)
@click.pass_obj
def doctor(
    session: Session,
    config_path: Path | None,
    model: str | None,
    grpc_port: int | None,
    http_port: int | None,
    bundle: Path | None,
) -> None:
    """Check this installation, and say what to do where something is wrong: Python and packages, torch and
    the engine's kernels, memory, disk, permissions, ports, the clock, the model's files, the object store
    with its keys, the collector of traces, and the services if they run.

    Every check is `ok`, `warn` (it serves, but not as it could) or `fail`. Exit code 1 when one fails.

    \b kvquilt doctor                                 before the first `kvquilt up`, or when it fails kvquilt
    doctor --config quilt.yaml             with the settings that are to be served kvquilt doctor --bundle
    problem.tar.gz         everything that an investigation needs; look into it before sending
    """
    from cluster.cli.model_choice import chosen_values
    from cluster.config import load_quilt
    from cluster.doctor import machine, software, surroundings
    from cluster.doctor.bundle import write_bundle
    from cluster.doctor.diagnosis import Diagnosis, Examined, run_checks, worst
    from cluster.local.state import RunDirectory
    from cluster.models.names import default_model
    from shared.clients.doors import rag_client

    data_dir = str(session.data_dir)
    options = {"model": model, "data_dir": data_dir, "grpc_port": grpc_port, "http_port": http_port}
    try:
        values = chosen_values(config_path, options)
        values["model"] = values.get("model") or default_model()
        config = load_quilt(values, dict(os.environ), resolve=str)
    except KvquiltError as error:
        _show(
            session,
            [Diagnosis("settings", "fail", error.detail, "correct the setting that is named")],
        )
        sys.exit(1)
    state = RunDirectory(session.data_dir).running()

    def status() -> list[ServiceHealth]:
        return session.ask(rag_client, lambda rag: rag.status(session.context(_STATUS_MS)))

    installation = Examined(config, os.environ, state, status)
    checks = {
        "python": software.check_python,
        "packages": software.check_packages,
        "torch": software.check_torch,
        "kernels": software.check_kernels,
        "ray": software.check_ray,
        "memory": machine.check_memory,
        "disk": machine.check_disk,
        "permissions": machine.check_permissions,
        "ports": machine.check_free_ports,
        "doors": machine.check_doors,
        "clock": machine.check_clock,
        "keys": surroundings.check_keys,
        "model": surroundings.check_model,
        "object store": surroundings.check_object_store,
        "traces": surroundings.check_collector,
        "services": surroundings.check_services,
    }
    findings = [Diagnosis("settings", "ok", "can be read"), *run_checks(checks, installation)]
    _show(session, findings)
    if bundle is not None:
        written = write_bundle(bundle, installation, findings)
        session.err.print(f"{bundle}: {', '.join(written)}; look into it before you send it", soft_wrap=True)
    if worst(findings) == "fail":
        sys.exit(1)


def _show(session: Session, findings: list[Diagnosis]) -> None:
    if session.as_json:
        session.tell(list(map(dataclasses.asdict, findings)))
        return
    for finding in findings:
        session.out.print(f"{finding.outcome:5}", style=_STYLES[finding.outcome], end="")
        session.out.print(f"{finding.check:13} {finding.detail}", markup=False, soft_wrap=True)
        if finding.remedy:
            session.out.print(f"{'':18} → {finding.remedy}", style="dim", markup=False, soft_wrap=True)
