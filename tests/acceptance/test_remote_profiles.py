"""Commands that know a server by its profile: keys, signing in, and what a terminal shows and asks."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import sys
import time
from typing import Any

from mdm_gitops.client.profiles import Profiles
from tests.acceptance.processes import KEY, PATIENCE_S, PROGRAM, environment
from tests.acceptance.site import Shell, Site

# --- profiles and signing in ----------------------------------------------------------------------


def test_profiles(stranger: Shell) -> None:
    stranger("config", "set", "url", stranger.url)
    stranger("config", "set", "key", "-", stdin=f"{KEY}\n")
    secret = stranger.folder / "config" / "credentials.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stranger.json("whoami")["isGlobalAdmin"] is True
    assert stranger("config", "get", "key").stdout == "stored\n"
    assert KEY not in stranger("config", "list", "--json").stdout

    stranger("config", "set", "url", "http://127.0.0.1:9", "--profile", "away")
    stranger("config", "set", "key-env", "AWAY_KEY", "--profile", "away")
    unset = stranger("whoami", "--profile", "away", code=1)
    assert "$AWAY_KEY, which is not set" in unset.stderr
    listed = stranger.json("config", "list")
    assert [each["name"] for each in listed["items"]] == ["away", "default"]
    assert stranger.json("config", "use", "away") == {"profile": "away"}
    assert stranger.json("config", "get", "key-env") == {"profile": "away", "key-env": "AWAY_KEY"}
    assert stranger("config", "get", "url").stdout == "http://127.0.0.1:9\n"
    stranger("config", "unset", "key-env")
    stranger("config", "remove", "away", "--yes")
    assert "no profile 'away'" in stranger("whoami", "--profile", "away", code=1).stderr
    secret.chmod(0o644)
    assert "can be read by others" in stranger("whoami", code=1).stderr


def test_a_profile_that_is_named_is_meant_with_its_own_key(stranger: Shell) -> None:
    """What stands before what else is held by the unit tests; this is where it meets a server."""
    profiles = Profiles(stranger.folder / "config")
    profiles.set("default", url=stranger.url)
    profiles.store_api_key("default", KEY)
    there = {"MDM_URL": stranger.url, "MDM_API_KEY": "of-somebody-else-0001"}
    assert stranger.json("whoami", code=1, **there)["error"]["code"] == "AUTH_REQUIRED"
    assert stranger.json("whoami", "--profile", "default", **there)["isGlobalAdmin"] is True
    profiles.set("default", url="http://127.0.0.1:9")
    error = stranger.json("whoami", "--url", stranger.url, code=1)["error"]
    assert error["code"] == "AUTH_REQUIRED"  # the key is for its own server only


def begin_login(stranger: Shell, site: Site) -> subprocess.Popen[str]:
    there = ("--url", site.url, "--issuer", site.provider.issuer, "--client-id", "mdm-cli")
    return subprocess.Popen(
        [PROGRAM, "login", "--device", *there],
        env=environment(**stranger.variables),
        stderr=subprocess.PIPE,
        text=True,
    )


def test_signing_in_with_a_code(stranger: Shell, site: Site) -> None:
    process = begin_login(stranger, site)
    assert process.stderr
    code = process.stderr.readline().split()[-1]
    site.provider.answer_device(code, "root")
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    who = stranger.json("whoami")
    assert (who["principal"], who["credential"], who["isGlobalAdmin"]) == (
        "user:root",
        "bearer",
        True,
    )
    file = stranger.folder / "config" / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def tamper(**values: Any) -> dict[str, Any]:
        kept = json.loads(file.read_text())
        before = dict(kept["default"]["tokens"])
        kept["default"]["tokens"].update(values)
        file.write_text(json.dumps(kept))
        return before

    before = tamper(expires_at=time.time() + 5)
    assert stranger.json("whoami")["principal"] == "user:root"  # renewed before its end
    after = tamper(access_token="no.longer.good")
    assert after["refresh_token"] != before["refresh_token"]
    assert stranger.json("whoami")["principal"] == "user:root"  # renewed after a refusal
    stranger("logout")
    assert "not signed in" in stranger("logout").stderr
    assert stranger.json("whoami", code=1)["error"]["code"] == "AUTH_REQUIRED"
    assert "access_token" not in file.read_text()


def test_signing_in_is_refused(stranger: Shell, site: Site) -> None:
    process = begin_login(stranger, site)
    assert process.stderr
    site.provider.answer_device(process.stderr.readline().split()[-1], "root", answer="no")
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1 and "was refused" in said


BROWSER = """import sys, urllib.parse, urllib.request
page = sys.argv[1]
form = urllib.parse.urlencode({"username": "anna", "password": "correct horse"}).encode()
print(urllib.request.urlopen(page, form, timeout=30).read().decode())
"""


def test_signing_in_with_a_browser(stranger: Shell, site: Site) -> None:
    """The browser is a program: it signs in at the provider and is led back to the command's port."""
    browser = stranger.file("browser.py", BROWSER)
    profiles = Profiles(stranger.folder / "config")
    profiles.set("default", url=site.url, issuer=site.provider.issuer, client_id="mdm-cli")
    opened_by = f"{sys.executable} {browser} %s"
    done = stranger("login", "--browser", BROWSER=opened_by)
    assert "signed in" in done.stderr
    assert stranger.json("whoami")["principal"] == "user:anna"


# --- on a terminal --------------------------------------------------------------------------------


def on_terminal(shell: Shell, *arguments: str, types: str = "") -> tuple[int, str]:
    """Run a command on a terminal where somebody types; return its code and what was shown."""
    ours, theirs = pty.openpty()
    given = environment(**{**shell.variables, "TERM": "xterm", "COLUMNS": "100"})
    process = subprocess.Popen(
        [PROGRAM, *arguments],
        env={name: value for name, value in given.items() if name != "NO_COLOR"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, types.encode())
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    return process.wait(PATIENCE_S), shown.decode()


def test_a_table_steers_no_terminal(shell: Shell) -> None:
    """What others wrote is shown, but is not obeyed."""
    evil = "x\x1b]0;owned\x07\x9b31mred\u202e"
    values = json.dumps({"code": "t1", "name": evil})
    row = shell.json("entities", "data", "create", "place", "--file", "-", stdin=values)
    listed = ("entities", "data", "list", "place", "--filter", "[code] = 't1'")
    code, shown = on_terminal(shell, *listed)
    assert code == 0 and "\x1b[1m" in shown  # the heading is bold, so this was a table
    assert "owned" in shown and "red" in shown
    for sign in ("\x1b]", "\x9b", "\u202e"):
        assert sign not in shown
    code, shown = on_terminal(shell, "entities", "data", "get", "place", row["_sys_id"])
    assert code == 0 and "owned" in shown and "\x1b]" not in shown
    assert "\x1b" not in shell(*listed).stdout
    assert shell.json(*listed)["items"][0]["name"] == evil  # as data it is what it is


def test_a_terminal_is_asked(shell: Shell) -> None:
    row = shell.put("place", code="t2")["_sys_id"]
    delete = ("entities", "data", "delete", "place", row)
    code, shown = on_terminal(shell, *delete, types="n\n")
    assert code == 1 and f"Delete row {row} of place?" in shown and "aborted" in shown
    code, shown = on_terminal(shell, *delete, types="y\n")
    assert code == 0 and f"row {row} is deleted" in shown
    assert shell.json("entities", "data", "get", "place", row, code=1)["error"]["code"] == (
        "ROW_NOT_FOUND"
    )
