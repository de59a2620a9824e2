"""``mdm-gitops config``: servers and how to come in, kept as profiles of the user."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._given import confirm
from mdm_gitops.cli._output import echo_json, json_option, tell
from mdm_gitops.cli._show import show_list

_SETTABLE: Final = (
    "url",
    "key-env",
    "key-file",
    "key",
    "issuer",
    "client-id",
    "scope",
    "audience",
)
_HERE: Final = "mdm_gitops.cli.config_cmd"
COMMANDS: Final = {
    "set": (f"{_HERE}:set_", "Keep a value."),
    "get": (f"{_HERE}:get", "Print a value."),
    "list": (f"{_HERE}:list_", "List profiles."),
    "unset": (f"{_HERE}:unset", "Forget a value."),
    "use": (f"{_HERE}:use", "Choose the profile that is meant where none is named."),
    "remove": (f"{_HERE}:remove", "Forget a profile."),
}
_PROFILE: Final = click.option(
    "--profile",
    envvar="MDM_PROFILE",
    metavar="NAME",
    help="The profile; else MDM_PROFILE, then the one in use.",
)
_NAME: Final = click.argument("name", type=click.Choice(_SETTABLE))


@click.group(cls=LazyGroup, commands_table=COMMANDS, context_settings=CONTEXT)
def config() -> None:
    """Keep servers and how to come in as profiles.

    They are in MDM_CONFIG_DIR, else in ~/.config/mdm-gitops. Keys and tokens have a file of their own
    there that nobody else may read; a profile can also name a variable or a file that has the key.
    """


@click.command(name="set")
@_NAME
@click.argument("value")
@_PROFILE
@json_option
def set_(name: str, value: str, profile: str | None, as_json: bool) -> None:
    """Keep VALUE as NAME in a profile, which is made if there is none.

    \b
    mdm-gitops config set url https://mdm.example.com --profile prod
    mdm-gitops config set key-env PROD_MDM_KEY --profile prod

    For `key`, give - as the value: the key is then asked for, or read from standard input, and no
    list of processes or history of a shell shows it.
    """
    from mdm_gitops.client.profiles import SETTABLE, Profiles

    profiles = Profiles()
    chosen = profile or profiles.current
    if name == "key":
        if chosen not in profiles.names():
            profiles.set(chosen)
        profiles.store_api_key(chosen, _secret(value))
    else:
        profiles.set(chosen, **{SETTABLE[name]: value})
    tell(f"profile {chosen}: {name} is set", as_json=as_json, profile=chosen, set=name)


@click.command()
@_NAME
@_PROFILE
@json_option
def get(name: str, profile: str | None, as_json: bool) -> None:
    """Print NAME of a profile. A stored key is not printed, only that there is one."""
    from mdm_gitops.client.profiles import SETTABLE, Profiles

    profiles = Profiles()
    chosen = profiles.get(profile)
    if name == "key":
        value = "stored" if profiles.has_stored_key(chosen.name) else None
    else:
        value = getattr(chosen, SETTABLE[name])
    if as_json:
        echo_json({"profile": chosen.name, name: value})
    else:
        click.echo(value or "")


@click.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List profiles, what they say, and how each comes in."""
    from mdm_gitops.client.profiles import Profiles

    profiles = Profiles()
    found = [_told(profiles, name) for name in profiles.names()]
    if as_json:
        echo_json({"items": found, "current": profiles.current, "folder": str(profiles.folder)})
    else:
        show_list(found, ("inUse", "name", "url", "credential", "issuer"))


@click.command()
@_NAME
@_PROFILE
@json_option
def unset(name: str, profile: str | None, as_json: bool) -> None:
    """Forget NAME of a profile."""
    from mdm_gitops.client.profiles import SETTABLE, Profiles

    profiles = Profiles()
    chosen = profiles.get(profile).name
    if name == "key":
        profiles.store_api_key(chosen, None)
    else:
        profiles.set(chosen, **{SETTABLE[name]: None})
    tell(f"profile {chosen}: {name} is forgotten", as_json=as_json, profile=chosen, unset=name)


@click.command()
@click.argument("profile")
@json_option
def use(profile: str, as_json: bool) -> None:
    """Take PROFILE where none is named."""
    from mdm_gitops.client.profiles import Profiles

    Profiles().use(profile)
    tell(f"profile {profile} is in use", as_json=as_json, profile=profile)


@click.command()
@click.argument("profile")
@click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")
@json_option
def remove(profile: str, yes: bool, as_json: bool) -> None:
    """Forget PROFILE with its key and its sign-in."""
    from mdm_gitops.client.profiles import Profiles

    profiles = Profiles()
    profiles.get(profile)
    confirm(f"Forget profile {profile} with its credentials?", yes=yes)
    profiles.remove(profile)
    tell(f"profile {profile} is forgotten", as_json=as_json, profile=profile)


def _secret(value: str) -> str:
    if value != "-":
        return value
    if sys.stdin.isatty():
        return str(click.prompt("Key", hide_input=True, err=True))
    return sys.stdin.readline().strip()


def _told(profiles: Any, name: str) -> dict[str, Any]:
    profile = profiles.get(name)
    credential = (
        (profile.key_env and f"${profile.key_env}")
        or profile.key_file
        or ("stored key" if profiles.has_stored_key(name) else None)
        or ("signed in" if profiles.tokens(name) else None)
    )
    return {
        "name": name,
        "inUse": name == profiles.current,
        "url": profile.url,
        "credential": credential,
        "issuer": profile.issuer,
    }
