"""``mdm-gitops login`` and ``logout``: signing in at the identity provider, kept in a profile."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from threading import Thread
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._output import json_option, say, tell

if TYPE_CHECKING:
    from mdm_gitops.client.profiles import Profile, Profiles, Tokens
    from mdm_gitops.client.sign_in import DeviceCode

_PROFILE = click.option(
    "--profile", metavar="NAME", help="The profile; else MDM_PROFILE, then the one in use.",
    envvar="MDM_PROFILE",
)  # fmt: skip


@click.command(context_settings=CONTEXT)
@click.option(
    "--device/--browser",
    "with_device",
    default=None,
    help="Type a code on any device, or use a browser here; the browser where there is a terminal"
    " with a display.",
)
@click.option("--url", metavar="URL", help="The server that the sign-in is for.")
@click.option("--issuer", metavar="URL", help="The identity provider, as it names itself.")
@click.option("--client-id", metavar="ID", help="This program's id there: a public client.")
@click.option("--scope", metavar="TEXT", help="What to ask for, instead of the usual.")
@click.option("--audience", metavar="TEXT", help="What the token is for, where providers want it.")
@_PROFILE
@json_option
def login(
    with_device: bool | None,
    profile: str | None,
    url: str | None,
    issuer: str | None,
    client_id: str | None,
    scope: str | None,
    audience: str | None,
    as_json: bool,
) -> None:
    """Sign in, and keep the sign-in in a profile.

    \b
    mdm-gitops login --url https://mdm.example.com \\
      --issuer https://id.example.com --client-id mdm-cli
    mdm-gitops login

    The first time it is told where to sign in; the profile keeps that. The access token is renewed by
    itself as long as the provider lets it.
    """
    from mdm_gitops.client.profiles import Profiles

    profiles = Profiles()
    name = profile or profiles.current
    given = {
        "url": url,
        "issuer": issuer,
        "client_id": client_id,
        "scope": scope,
        "audience": audience,
    }
    known = {each: value for each, value in given.items() if value is not None}
    chosen = profiles.set(name, **known) if known else profiles.get(name)
    asyncio.run(_login(profiles, chosen, with_device))
    tell(f"signed in; profile {name} keeps it", as_json=as_json, profile=name, signedIn=True)


async def _login(profiles: Profiles, profile: Profile, with_device: bool | None) -> None:
    from mdm_gitops.client.sign_in import SignIn

    sign_in = SignIn(profile)
    try:
        if with_device if with_device is not None else not _has_browser():
            tokens = await sign_in.with_device(_tell_code)
        else:
            tokens = await sign_in.with_browser(_open)
    finally:
        await sign_in.close()
    with profiles.locked():
        profiles.store_tokens(profile.name, tokens)


@click.command(context_settings=CONTEXT)
@_PROFILE
@json_option
def logout(profile: str | None, as_json: bool) -> None:
    """Forget the sign-in of a profile, and have the provider revoke it where it can."""
    from mdm_gitops.client.profiles import Profiles

    profiles = Profiles()
    chosen = profiles.get(profile)
    tokens = profiles.tokens(chosen.name)
    if tokens is None:
        told = f"profile {chosen.name} is not signed in"
        tell(told, as_json=as_json, profile=chosen.name, signedIn=False, revoked=False)
        return
    with profiles.locked():
        profiles.store_tokens(chosen.name, None)
    revoked = asyncio.run(_revoke(chosen, tokens))
    told = "signed out" + ("" if revoked else "; the token stays good until it ends")
    tell(told, as_json=as_json, profile=chosen.name, signedIn=False, revoked=revoked)


async def _revoke(profile: Profile, tokens: Tokens) -> bool:
    from mdm_gitops.client.sign_in import SignIn
    from mdm_gitops.errors import MdmError

    try:
        sign_in = SignIn(profile)
        try:
            return await sign_in.sign_out(tokens)
        finally:
            await sign_in.close()
    except MdmError:
        return False  # it is forgotten here, whatever the provider says


def _tell_code(code: DeviceCode) -> None:
    say(f"open {code.address} and enter the code {click.style(code.user_code, bold=True)}")
    if code.whole_address:
        say(f"or open {code.whole_address}")


def _open(page: str) -> None:
    say(f"opening a browser; if none appears, open\n{page}")
    # Some browsers are waited for until they are closed, and the answer comes before that.
    Thread(target=webbrowser.open, args=[page], daemon=True).start()


def _has_browser() -> bool:
    if not sys.stderr.isatty():
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
