"""A real link that can be cut: a program in a network of its own, with a cable to the server and one to us.

It is cut without a word: packets go to a neighbour who is not there. So neither end hears anything, as
where a switch is dead; only time tells. Needs root and the ``ip`` of Linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Final, Self

_NOBODY: Final = "02:00:00:00:00:99"


def why_not() -> str:
    """Return why there can be no such network here, "" where there can."""
    if os.geteuid() != 0:
        return "networks of their own need root"
    if not shutil.which("ip"):
        return "no program ip"
    name = f"mdm-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network of its own: {done.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


class Link:
    """``with Link() as link``: run ``link.command`` + a program, which reaches us at ``link.database_host``
    over the link to be cut; it listens at ``link.own_host``, which stays within reach."""

    def __init__(self) -> None:
        number = os.getpid()
        self._name = f"mdm{number}"
        self._cable, self._other_cable = f"mc{number}", f"mo{number}"
        net = f"10.{200 + number % 50}.{number // 50 % 250}"
        self.database_host, self._far_host = f"{net}.1", f"{net}.2"
        self._near_host, self.own_host = f"{net}.129", f"{net}.130"
        self.command = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        _ip("netns", "add", self._name)
        try:
            self._lay(self._cable, self.database_host, self._far_host)
            self._lay(self._other_cable, self._near_host, self.own_host)
            self._ip_there("link", "set", "lo", "up")
            self.mend()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subprocess.run(["ip", "netns", "del", self._name], check=False, capture_output=True)
        for cable in (self._cable, self._other_cable):  # gone with it, if it was made
            subprocess.run(["ip", "link", "del", cable], check=False, capture_output=True)

    def cut_asking(self) -> None:
        """Let nothing arrive at the server."""
        self._ip_there(*self._neighbour(self.database_host, _NOBODY, f"{self._cable}n"))

    def cut_answers(self) -> None:
        _ip(*self._neighbour(self._far_host, _NOBODY, self._cable))

    def cut(self) -> None:
        self.cut_asking()
        self.cut_answers()

    def mend(self) -> None:
        there = _ip("-n", self._name, "link", "show", f"{self._cable}n")
        here = _ip("link", "show", self._cable)
        self._ip_there(*self._neighbour(self.database_host, _address_in(here), f"{self._cable}n"))
        _ip(*self._neighbour(self._far_host, _address_in(there), self._cable))

    def _lay(self, cable: str, here: str, there: str) -> None:
        far = f"{cable}n"
        _ip("link", "add", cable, "type", "veth", "peer", "name", far, "netns", self._name)
        _ip("addr", "add", f"{here}/25", "dev", cable)
        _ip("link", "set", cable, "up")
        self._ip_there("addr", "add", f"{there}/25", "dev", far)
        self._ip_there("link", "set", far, "up")

    def _ip_there(self, *arguments: str) -> None:
        _ip("-n", self._name, *arguments)

    @staticmethod
    def _neighbour(host: str, address: str, cable: str) -> tuple[str, ...]:
        return ("neigh", "replace", host, "lladdr", address, "dev", cable, "nud", "permanent")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _address_in(shown: str) -> str:
    return shown.partition("link/ether ")[2].split()[0]
