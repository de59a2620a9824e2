"""``mdm-gitops``: the command line. One module per command or group of commands.

``COMMANDS`` is the whole of it: a module is imported when its command runs, so that ``--help``
costs no more than click itself. How errors become exit codes is in ``cli._errors``.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from mdm_gitops.cli._errors import run_and_exit

# name -> (module:attribute, one line for --help), in the order in which --help shows them
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "init": ("mdm_gitops.cli.init_cmd:init", "Make a first repository of definitions."),
    "validate": ("mdm_gitops.cli.validate_cmd:validate", "Check definitions, without a database."),
    "fmt": ("mdm_gitops.cli.fmt_cmd:fmt", "Rewrite definition files in the canonical form."),
    "schema": ("mdm_gitops.cli.schema_cmd:schema", "Print the JSON Schemas of the files."),
    "plan": ("mdm_gitops.cli.plan_cmd:plan", "Show what apply would change."),
    "apply": ("mdm_gitops.cli.apply_cmd:apply", "Bring the warehouse to what the files say."),
    "revert": ("mdm_gitops.cli.revert_cmd:revert", "Take a commit back, with its data."),
    "status": ("mdm_gitops.cli.status_cmd:status", "Show what is deployed, and from which commit."),
    "drift": ("mdm_gitops.cli.drift_cmd:drift", "Show what was changed past the definitions."),
    "diff": ("mdm_gitops.cli.diff_cmd:diff", "Compare what two environments have deployed."),
    "up": ("mdm_gitops.cli.up_cmd:up", "Run all of it here: database, operator and API."),
    "serve": ("mdm_gitops.cli.serve_cmd:serve", "Run the API."),
    "operator": ("mdm_gitops.cli.operator_cmd:operator", "Run the reconcile loop."),
    "plans": ("mdm_gitops.cli.plans_cmd:plans", "Decide plans of the operator that wait."),
    "reconcile": ("mdm_gitops.cli.reconcile_cmd:reconcile", "Tell the operator: now, stop, go on."),
    "db": ("mdm_gitops.cli.db_cmd:db", "Start, stop and open the embedded database."),
    "entities": ("mdm_gitops.cli.entities_cmd:entities", "Work with entities and their rows."),
    "search": ("mdm_gitops.cli.search_cmd:search", "Find entities and rows by words."),
    "changes": ("mdm_gitops.cli.changes_cmd:changes", "Show what changed, or follow it."),
    "audit": ("mdm_gitops.cli.audit_cmd:audit", "Show who did what, and when."),
    "permissions": ("mdm_gitops.cli.permissions_cmd:permissions", "Say who may do what."),
    "roles": ("mdm_gitops.cli.audit_cmd:roles", "List what permissions are made of."),
    "access": ("mdm_gitops.cli.access_cmd:access", "Explain why somebody may, or not."),
    "api-keys": ("mdm_gitops.cli.api_keys_cmd:api_keys", "Make, list and revoke API keys."),
    "webhooks": ("mdm_gitops.cli.webhooks_cmd:webhooks", "Subscribe to changes."),
    "packages": ("mdm_gitops.cli.packages_cmd:packages", "Carry definitions between servers."),
    "common-entities": (
        "mdm_gitops.cli.common_entities_cmd:common_entities",
        "Install predefined entities with their rows.",
    ),
    "whoami": ("mdm_gitops.cli.whoami_cmd:whoami", "Show who a server takes you for."),
    "login": ("mdm_gitops.cli.login_cmd:login", "Sign in at the identity provider."),
    "logout": ("mdm_gitops.cli.login_cmd:logout", "Forget the sign-in."),
    "config": ("mdm_gitops.cli.config_cmd:config", "Keep servers and keys as profiles."),
    "api": ("mdm_gitops.cli.api_cmd:api", "Make any request of the API."),
    "completion": ("mdm_gitops.cli.completion_cmd:completion", "Print shell completion."),
}


class LazyGroup(click.Group):
    """A group whose commands are named in a table and imported on use.

    Commands that are there already (``commands``) stand in it, too, after those of the table.
    """

    def __init__(self, *, commands_table: dict[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands_table = commands_table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands_table, *self.commands]

    def _lines(self) -> dict[str, str]:
        """Return all commands with the one line that tells of each."""
        named = {name: text for name, (_, text) in self.commands_table.items()}
        ready = {name: each.get_short_help_str(88) for name, each in self.commands.items()}
        return {**named, **ready}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_table:
            return self.commands.get(cmd_name)
        module, _, attribute = self.commands_table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines().items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            from mdm_gitops.model.suggest import nearest

            near = nearest(args[0], names)
            more = f"; did you mean {near!r}?" if near else ""
            ctx.fail(f"no such command {args[0]!r}{more}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = [
            CompletionItem(name, help=text)
            for name, text in self._lines().items()
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        def run(arguments: list[str]) -> Any:
            return super(LazyGroup, self).main(
                arguments, prog_name, complete_var, standalone_mode=False, **extra
            )

        return run_and_exit(run, args) if standalone_mode else run(list(args or ()))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from mdm_gitops import __version__

    click.echo(f"mdm-gitops {__version__}")
    ctx.exit()


CONTEXT: Final[MutableMapping[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


@click.group(
    cls=LazyGroup,
    commands_table=COMMANDS,
    context_settings=CONTEXT,
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and exit.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Master data with definitions in Git and data in PostgreSQL.

    Data goes to stdout, everything said to a person to stderr. Exit codes: 0 done or no change,
    1 error, 2 changes (where asked for), 3 refused, 4 out of date, 5 locked, 6 partly applied,
    64 wrong usage.
    """
    from mdm_gitops.cli._output import wants_color

    # Importing and reading make many objects and hardly a cycle: looking for them costs 10 %.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)  # nor in what is left at the end: all of it goes with the process
    # No plugin of another package changes how definitions are read; to look for one costs as much.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    ctx.color = wants_color()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
