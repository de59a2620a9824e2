"""``mdm-gitops completion``: print the script that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mdm_gitops.cli._output import json_errors_option

_PLACES = {
    "bash": '~/.bashrc: eval "$(mdm-gitops completion bash)"',
    "zsh": '~/.zshrc: eval "$(mdm-gitops completion zsh)"',
    "fish": "~/.config/fish/config.fish: mdm-gitops completion fish | source",
}


@click.command(epilog="To keep it, add to " + "; or to ".join(_PLACES.values()))
@click.argument("shell", type=click.Choice(list(_PLACES)))
@json_errors_option
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL."""
    made_by = get_completion_class(shell)
    assert made_by is not None, "click knows the shells of the choice"
    root = ctx.find_root()
    script = made_by(root.command, {}, "mdm-gitops", "_MDM_GITOPS_COMPLETE")
    click.echo(script.source())
