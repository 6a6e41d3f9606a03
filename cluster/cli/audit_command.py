"""`kvquilt audit`: who did what, from the files that the services of this machine write."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cluster.cli.duration import Duration
from cluster.cli.output import output_option
from cluster.cli.session import Session
from shared.errors import NotFound

_SHOWN = ("time", "service", "principal", "tenant", "action", "outcome")
_HIDDEN = (*_SHOWN, "request_id", "trace_id", "chain")


@click.command()
@click.option("--action", help="Only this: ingest, delete, export documents, gc, pin, …")
@click.option("--principal", help="Only what this one did.")
@click.option("--tenant", help="Only for this tenant.")
@click.option("--service", help="Only what this service recorded.")
@click.option("--outcome", help="Only with this: OK, or the code of an error.")
@click.option("--since", type=Duration(), help="Only so lately: 30m, 7d.")
@click.option("--verify", "verifying", is_flag=True, help="Find lines that were changed or taken out.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files lie. Default: audit in the data directory.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The installation's secret, which --verify needs. Default: auth/secret in the data directory.",
)
@output_option(with_flag=True, help="For people (text), or the lines as they were recorded (json).")
@click.pass_obj
def audit(
    session: Session,
    action: str | None,
    principal: str | None,
    tenant: str | None,
    service: str | None,
    outcome: str | None,
    since: float | None,
    verifying: bool,
    directory: Path | None,
    secret_file: Path | None,
) -> None:
    """Show who did what: documents ingested, deleted and exported, garbage, pins, indexes, keys, calls that
    were refused.

    Reads the files that the services of this machine write; on a cluster every node has its own. Texts and
    keys are not in them. With --verify exit code 1 says that lines were changed or taken out.

    \b
    kvquilt audit --since 7d
    kvquilt audit --action delete --tenant acme --json
    kvquilt audit --verify
    """
    from shared.audit import read_lines, verify
    from shared.audited import audit_keys
    from shared.principals.config import AuthConfig

    place = directory or session.data_dir / "audit"
    if not place.is_dir():
        raise NotFound(f"--directory: nothing is on record in {place}")
    if verifying:
        secret = secret_file or session.data_dir / "auth" / "secret"
        found = list(verify(place, audit_keys(AuthConfig(secret_file=str(secret))) or (b"",)))
        for told in found:
            session.out.print(told, style="red", soft_wrap=True, markup=False)
        num_lines = sum(1 for _ in read_lines(place))
        session.tell(
            {"num_lines": num_lines, "findings": found}, f"{num_lines} lines: {len(found)} do not fit"
        )
        sys.exit(1 if found else 0)
    wanted = {"action": action, "principal": principal, "tenant": tenant, "service": service}
    wanted = {name: value for name, value in (wanted | {"outcome": outcome}).items() if value is not None}
    after = _utc(time.time() - since) if since is not None else ""
    lines = sorted(
        (
            line
            for line in read_lines(place)
            if all(line.get(name) == value for name, value in wanted.items()) and str(line["time"]) >= after
        ),
        key=lambda line: str(line["time"]),
    )
    if session.as_json:
        for line in lines:
            session.tell_line(line)
    else:
        _print(session, lines)


def _print(session: Session, lines: list[Mapping[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (*_SHOWN, "what"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        what = " ".join(f"{name}={value}" for name, value in line.items() if name not in _HIDDEN)
        table.add_row(*(Text(repr(str(line.get(name, "")))[1:-1]) for name in _SHOWN), Text(repr(what)[1:-1]))
    session.out.print(table if lines else "nothing is on record")


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
