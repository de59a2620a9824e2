"""``mdm-gitops operator``: the reconcile loop alone, beside an API that others run."""

from __future__ import annotations

import asyncio
import json
import logging.config
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import json_option, say
from mdm_gitops.errors import InputError

if TYPE_CHECKING:
    from mdm_operator.reconcile import Listener
    from mdm_operator.state import Run


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option("--once", is_flag=True, help="Reconcile once and exit with the code of `apply`.")
@json_option
@environment_option
@click.pass_context
def operator(ctx: click.Context, directory: Path, once: bool, as_json: bool) -> None:
    """Keep the warehouse what the definitions in DIR (default: here) say.

    With Mdm__Source__Url the definitions are those of a remote repository, and DIR holds the settings
    and a mirror. Changes that the policy in mdm.yaml lets through are applied, others wait for
    `plans approve`. Several operators may run: one works at a time. SIGTERM ends it between two
    steps. With --json, each run is one line of JSON on stdout.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} is not a folder", hint="give the folder that holds mdm.yaml")
    from mdm_gitops.cli._signals import run_until_stopped

    run = run_until_stopped(_operate(directory, once=once, as_json=as_json))
    if run is not None and run.error is not None:
        ctx.exit(run.error.kind.exit_code)


async def _operate(directory: Path, *, once: bool, as_json: bool) -> Run | None:
    from mdm_gitops.cli._signals import stop_on_signals
    from mdm_gitops.logs import keep_out, log_config
    from mdm_gitops.settings import load_settings
    from mdm_gitops.warehouse.locate import warehouse_url
    from mdm_operator import Reconciler, run_operator
    from mdm_operator.loop import Pace
    from mdm_operator.metrics import Numbers, serving_numbers
    from mdm_operator.reconcile import Listeners

    logging.config.dictConfig(log_config(as_json=as_json or not sys.stderr.isatty()))
    stop, numbers = asyncio.Event(), Numbers()
    settings = load_settings(directory)
    keep_out(settings)
    with stop_on_signals(stop):
        async with warehouse_url(directory, settings) as url:
            reconciler = Reconciler(
                directory,
                url=url,
                settings=settings,
                stop=stop,
                listener=Listeners(_listener(directory, as_json=as_json), numbers),
                among_several=not once,
            )
            try:
                if once:
                    return await reconciler.step()
                async with serving_numbers(numbers, reconciler, settings.Operator):
                    say(f"Watching {reconciler.source}; Ctrl-C or SIGTERM ends it")
                    await run_operator(reconciler, pace=Pace.of(settings.Operator), stop=stop)
            finally:
                await reconciler.aclose()
    return None


def _listener(directory: Path, *, as_json: bool) -> Listener:
    if as_json:
        return _json_listener()
    from mdm_gitops.cli._telling import Telling

    return Telling(directory, brief_first=False)


def _json_listener() -> Listener:
    from mdm_operator.reconcile import Listener
    from mdm_operator.state import run_document

    class Lines(Listener):
        def finished(self, run: Run) -> None:
            click.echo(json.dumps(run_document(run), ensure_ascii=False))

    return Lines()
