"""`kvquilt key …`: who may call. Works on the file of keys, whether or not a system runs."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.duration import Duration
from cluster.cli.output import output_option
from cluster.cli.session import FILE, Session
from shared.errors import InvalidRequest, NotFound
from shared.principals.principal import Role
from shared.request import DEFAULT_TENANT

if TYPE_CHECKING:
    from shared.principals.keys import KeyRecord

_ROLES = [role.value for role in Role if role is not Role.INTERNAL]
_file_option = click.option(
    "--file",
    "path",
    type=FILE,
    help="The file of keys. Default: the running system's auth.keys_file, else auth/keys.json in the data "
    "directory.",
)


@click.group()
def key() -> None:
    """Who may call: keys, and names of client certificates."""


@key.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    type=click.Choice(_ROLES),
    multiple=True,
    help="reader asks and searches, writer changes documents, too, admin looks after the installation, too. "
    "Default: reader.",
)
@click.option("--tenant", default="", help="Whose documents. Default: --tenant of kvquilt, else default.")
@click.option("--group", "groups", multiple=True, help="Whose readers it is one of; may be repeated.")
@click.option(
    "--expires", type=Duration(), default=0.0, help="How long it is valid: 12h, 90d. Default: for ever."
)
@click.option(
    "--certificate",
    default="",
    metavar="URI=…|DNS=…|CN=…",
    help="No key, but the name of a client certificate that the proxy which ends TLS tells.",
)
@click.option("--terminator", is_flag=True, help="The key of that proxy, which may do nothing else.")
@_file_option
@output_option()
@click.pass_obj
def create(
    session: Session,
    name: str,
    roles: tuple[str, ...],
    tenant: str,
    groups: tuple[str, ...],
    expires: float,
    certificate: str,
    terminator: bool,
    path: Path | None,
) -> None:
    """Make a key for NAME, and print it: this once, for only its hash is kept.

    A caller may have several: make the new one, hand it over, then revoke the old one. Services that run see
    both within a second.

    \b
    kvquilt key create anna
    kvquilt key create ingester --role writer --tenant acme --expires 90d
    kvquilt key create search --certificate URI=spiffe://cluster.local/ns/search/sa/default --group staff
    """
    from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_id, new_key, utc_now

    if terminator and (certificate or roles or groups):
        raise InvalidRequest("--terminator: its key says whose proxy it is, and has neither roles nor groups")
    made = "" if certificate else new_key()
    now = utc_now().replace(microsecond=0)
    kind = KeyKind.TERMINATOR if terminator else KeyKind.CERTIFICATE if certificate else KeyKind.KEY
    try:
        record = KeyRecord(
            key_id=id_of(made) or new_id(),
            name=name,
            kind=kind,
            tenant=tenant or session.tenant or DEFAULT_TENANT,
            roles=frozenset() if terminator else frozenset(map(Role, roles or (Role.READER,))),
            groups=frozenset(groups),
            hash=hash_of(made) if made else "",
            certificate=certificate,
            created=now,
            expires=now + datetime.timedelta(seconds=expires) if expires else None,
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    place = _place(session, path)
    _add(place, record)
    _on_record(session, "create key", record)
    if session.as_json:
        session.tell(_shown(record, now) | {"key": made or None, "file": place})
    elif made:
        click.echo(made)
        session.err.print(
            f"the key {record.key_id} of {name} is in {place}; it is shown this once", soft_wrap=True
        )
    else:
        session.err.print(f"{certificate} is {name} from now on, in {place}", soft_wrap=True)


@key.command("list")
@_file_option
@output_option(with_flag=True, help="For people (text), or a line of JSON for each (json).")
@click.pass_obj
def list_keys(session: Session, path: Path | None) -> None:
    """Show who may call, and who might once: never the keys themselves."""
    from rich.table import Table

    from shared.principals.keys import utc_now

    now, table = utc_now(), Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("id", "name", "kind", "tenant", "roles", "groups", "state", "expires"):
        table.add_column(heading, overflow="fold")
    for record in _records(_place(session, path)):
        row = _shown(record, now)
        if session.as_json:
            session.tell_line(row)
        table.add_row(*(", ".join(v) if isinstance(v, list) else v for v in row.values()))
    if not session.as_json:
        session.out.print(table if table.row_count else "there are no keys")


@key.command()
@click.argument("key_id", metavar="ID")
@click.option("--in", "after_s", type=Duration(), default=0.0, help="So long from now: 1h. Default: at once.")
@_file_option
@output_option()
@click.pass_obj
def revoke(session: Session, key_id: str, after_s: float, path: Path | None) -> None:
    """Take a key (or a certificate's name) back, by its id from `kvquilt key list`.

    \b
    kvquilt key revoke 3kTz0aVd91Qx
    kvquilt key revoke 3kTz0aVd91Qx --in 1h
    """
    from shared.principals.keys import utc_now
    from shared.principals.keys_file import changing

    place = _place(session, path)
    _records(place)  # a file that is not there is not made
    when = utc_now().replace(microsecond=0) + datetime.timedelta(seconds=after_s)
    with changing(place) as records:
        found = [at for at, record in enumerate(records) if record.key_id == key_id]
        if not found:
            raise NotFound(f"ID: there is no key {key_id[:40]!r} in {place}; `kvquilt key list` shows them")
        for at in found:
            records[at] = replace(records[at], revoked=when)
    for at in found:
        _on_record(session, "revoke key", records[at])
    told = f"revoked{f' from {when.isoformat()} on' if after_s else ''}"
    session.tell({"id": key_id, "revoked": when.isoformat()}, told)


def _place(session: Session, path: Path | None) -> Path:
    return path or session.keys_file


def _records(path: Path) -> tuple[KeyRecord, ...]:
    """
    Raises:
        NotFound: there is no file.
        ConfigError: it is damaged.
    """
    from shared.principals.keys_file import read_keys

    try:
        return read_keys(path).records
    except FileNotFoundError:
        raise NotFound(f"there are no keys in {path}; `kvquilt key create NAME` makes one") from None


def _add(path: Path, record: KeyRecord) -> None:
    from shared.principals.keys_file import changing

    with changing(path) as records:
        records.append(record)


def _on_record(session: Session, action: str, record: KeyRecord) -> None:
    """In the audit of the data directory, if there is one. Never the key itself."""
    from shared.audit import Actor, AuditConfig, AuditLog
    from shared.audited import audit_keys
    from shared.principals.config import AuthConfig
    from shared.principals.principal import OPERATOR

    if not session.data_dir.is_dir():
        return
    secret = session.data_dir / "auth" / "secret"
    chained_by, *_ = audit_keys(AuthConfig(secret_file=str(secret))) or (b"",)
    audit = AuditLog("keys", AuditConfig(str(session.data_dir.absolute() / "audit")), chained_by)
    what = {"key_id": record.key_id, "name": record.name, "roles": sorted(record.roles)}
    audit.record(action, Actor(OPERATOR, record.tenant), what=what)


def _shown(record: KeyRecord, now: datetime.datetime) -> dict[str, Any]:
    return {
        "id": record.key_id,
        "name": record.name,
        "kind": record.certificate or record.kind.value,
        "tenant": record.tenant,
        "roles": sorted(record.roles),
        "groups": sorted(record.groups),
        "state": record.state(now),
        "expires": record.expires.strftime("%Y-%m-%dT%H:%MZ") if record.expires else "",
    }
