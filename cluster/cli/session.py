"""Gives every command where the system is, for whom, and where output goes; and ends it with an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.text import Text

from cluster.cli.output import as_json, error_json, json_asked_for
from shared.errors import Cancelled, InvalidRequest, KvquiltError, NotFound
from shared.principals.credentials import Credentials, bearer, no_credentials
from shared.request import READERS_STREAM_INTERVAL_MS, RequestContext

if TYPE_CHECKING:
    from cluster.local.state import StackState
    from shared.clients.doors import Door

ClientT = TypeVar("ClientT")
ResultT = TypeVar("ResultT")
Options = ParamSpec("Options")
INTERRUPTED = 130
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
LONG_DEADLINE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Session:
    """The options before the command. ``as_json``: it was asked for JSON; ``out`` is silent then, and so is
    ``err`` unless somebody looks at it."""

    data_dir: Path
    data_dir_chosen: bool
    target_option: str
    tenant: str
    out: Console
    err: Console
    key: str = ""
    ca_file: str = ""
    priority: int = 0
    as_json: bool = False

    def for_programs(self) -> Session:
        silent = Console(quiet=True)
        return replace(self, as_json=True, out=silent, err=self.err if self.err.is_terminal else silent)

    def tell(self, value: object, text: str = "") -> None:
        """Tells what came of a command: ``value`` as its JSON document, or ``text``."""
        if self.as_json:
            click.echo(as_json(value))
        elif text:
            self.out.print(Text(text), soft_wrap=True)

    def tell_line(self, value: object) -> None:
        """One of several values, a line of JSON."""
        click.echo(as_json(value, indent=None))

    def tell_error(self, error: KvquiltError) -> None:
        """Of a part of a command, which goes on."""
        if self.as_json:
            click.echo(error_json(error.code, error.detail, error.retryable), err=True)
        else:
            self.err.print(Text(error.detail, "red"), soft_wrap=True)

    def interrupted(self, told: str) -> int:
        """Returns the exit code."""
        if self.as_json:
            click.echo(error_json(Cancelled.code, told), err=True)
        else:
            self.err.print(Text(told), soft_wrap=True)
        return INTERRUPTED

    @property
    def target(self) -> str:
        """``--target``, else the stack that runs on the data directory.

        Raises:
            NotFound: there is none.
        """
        return self.target_option or self._state().target

    @property
    def http(self) -> str:
        """Returns where the stack that runs on the data directory answers HTTP; empty: a server was named."""
        return "" if self.target_option else self._state().http

    def target_of(self, application: str) -> str:
        """``target``, or the cluster that serves ``application`` for the stack that runs on the data
        directory."""
        if self.target_option:
            return self.target_option
        state = self._state()
        return state.addresses.get(application, state.target)

    def connect(self, door: Door[ClientT]) -> AbstractAsyncContextManager[ClientT]:
        target = self.target_of(door.application)
        if not self.target_option and target == (state := self._state()).target:
            return door(target, self.credentials, state.certificate, state.server_name)
        return door(target, self.credentials, self.ca_file)

    @property
    def credentials(self) -> Credentials:
        """The key that was named; else, for the stack that runs on the data directory, its owner's."""
        return self.credentials_at(self.target)

    def credentials_at(self, address: str) -> Credentials:
        """Those for a system at ``address``, of which nobody but its own stack is told the owner's."""
        from cluster.local.authentication import operator_credentials
        from cluster.local.state import RunDirectory

        if self.key:
            return bearer(self.key)
        state = RunDirectory(self.data_dir).running()
        return (
            operator_credentials(state.secret_file) if state and state.target == address else no_credentials
        )

    @property
    def keys_file(self) -> Path:
        """Of the stack that runs on the data directory, else where the next one will look."""
        from cluster.local.state import RunDirectory

        state = RunDirectory(self.data_dir).running()
        return Path(state.keys_file) if state and state.keys_file else self.data_dir / "auth" / "keys.json"

    def _state(self) -> StackState:
        from cluster.local.state import RunDirectory

        state = RunDirectory(self.data_dir).running()
        if state is None:
            raise NotFound(
                f"kvquilt is not running on {self.data_dir}; start it with `kvquilt up`, or name a "
                "server by --target HOST:PORT"
            )
        return state

    def context(self, deadline_ms: int = 120_000, tenant: str = "", traceparent: str = "") -> RequestContext:
        """``tenant`` empty: the one that was chosen."""
        return RequestContext.create(
            tenant=tenant or self.tenant,
            deadline_ms=deadline_ms,
            traceparent=traceparent,
            priority=self.priority,
            stream_interval_ms=READERS_STREAM_INTERVAL_MS,
        )

    def ask(self, door: Door[ClientT], question: Callable[[ClientT], Awaitable[ResultT]]) -> ResultT:
        """One call of a client of the system."""

        async def go() -> ResultT:
            async with self.connect(door) as client:
                return await question(client)

        return asyncio.run(go())


class Commands(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        args = list(ctx.args)

        def tell(code: str, message: str, retryable: bool = False) -> None:
            as_json = json_asked_for(ctx, args)
            click.echo(error_json(code, message, retryable) if as_json else f"kvquilt: {message}", err=True)

        try:
            return super().invoke(ctx)
        except KvquiltError as error:
            tell(error.code, error.detail, error.retryable)
            ctx.exit(exit_code(error))
        except click.UsageError as error:
            if not json_asked_for(ctx, args):
                raise
            tell(InvalidRequest.code, error.format_message())
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:  # click would say 1
            tell(Cancelled.code, "interrupted")
            ctx.exit(INTERRUPTED)


def exit_code(error: KvquiltError) -> int:
    if error.retryable:
        return 4
    if isinstance(error, NotFound):
        return 3
    return 2 if isinstance(error, InvalidRequest) else 1


def resumable(
    command: Callable[Concatenate[Session, Options], Coroutine[Any, Any, int]],
) -> Callable[Concatenate[Session, Options], NoReturn]:
    """Makes a command of a coroutine, which returns the exit code. Given again, it goes on."""

    @wraps(command)
    def exiting(session: Session, /, *args: Options.args, **options: Options.kwargs) -> NoReturn:
        try:
            code = asyncio.run(command(session, *args, **options))
        except KeyboardInterrupt:
            code = session.interrupted("interrupted; the same command goes on where this one stopped")
        sys.exit(code)

    return exiting
