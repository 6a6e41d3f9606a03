"""`kvquilt completion`."""

from __future__ import annotations

import shutil

import click
from click.shell_completion import ShellComplete, get_completion_class

from cluster.cli.output import output_option
from cluster.cli.session import Session
from shared.errors import FailedPrecondition

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_KVQUILT_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@output_option()
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and their values.

    \b
    eval "$(kvquilt completion bash)"                                      in ~/.bashrc
    eval "$(kvquilt completion zsh)"                                       in ~/.zshrc
    kvquilt completion fish > ~/.config/fish/completions/kvquilt.fish
    """
    session: Session = ctx.obj
    if shell == "bash" and shutil.which("bash") is None:  # its version decides about the script
        raise FailedPrecondition("bash: is not on PATH; complete another shell, or install it")
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of them"
    completing: ShellComplete = kind(ctx.find_root().command, {}, "kvquilt", VARIABLE)
    script = completing.source()
    session.tell({"shell": shell, "script": script})
    if not session.as_json:
        click.echo(script)
