"""Which addresses webhooks reach: a table of our own, and sockets that would tell if one was opened."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from mdm_gitops.deliver import sender as sender_module
from mdm_gitops.deliver.addresses import is_inside, is_loopback
from mdm_gitops.deliver.sender import Sender, why_ambiguous
from mdm_gitops.deliver.targets import TargetRules, ValidationMode, shown_url

pytestmark = pytest.mark.anyio
LOOPBACK = [
    "127.0.0.1",
    "127.0.0.2",
    "127.1.2.3",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "::1",
    "::127.0.0.1",
    "::0.0.0.0",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:0.0.0.0",
    "0:0:0:0:0:ffff:7f01:203",
    "64:ff9b::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2002:7f00:0001::5",
    "::1%lo",
    "::ffff:127.0.0.1%eth0",
]
INSIDE = [
    "10.0.0.0",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "fc00::1",
    "fd00:ec2::254",
    "fdff::1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:20::1",
    "2001:db8::1",
    "3fff::1",
    "3fff:fff::1",
    "5f00::1",
    "64:ff9b:1::1",
    "64:ff9b:1:a00::1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "2002:a00:1::",
    "2002:a9fe:a9fe::",
    "2002:c0a8:101::",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:192.168.1.1",
    "::10.0.0.1",
    "::169.254.169.254",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "192.167.1.1",
    "198.17.0.1",
    "223.255.255.255",
    "126.255.255.255",
    "128.0.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001::5",
    "2001:200::1",
    "64:ff9b::8.8.8.8",
    "2002:808:808::",
    "::ffff:8.8.8.8",
]


def test_the_table_is_long_enough() -> None:
    assert len({*LOOPBACK, *INSIDE, *PUBLIC}) == len([*LOOPBACK, *INSIDE, *PUBLIC]) >= 85


@pytest.mark.parametrize("address", LOOPBACK)
def test_this_machine(address: str) -> None:
    assert is_loopback(address) and is_inside(address)


@pytest.mark.parametrize("address", INSIDE)
def test_inside(address: str) -> None:
    assert is_inside(address) and not is_loopback(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert not is_inside(address) and not is_loopback(address)


# --- sockets --------------------------------------------------------------------------------------

# Of the port {p} of this machine. Each of them leads there for one client or another.
SPELLINGS = (
    "http://127.0.0.1:{p}/",
    "http://127.1:{p}/",
    "http://127.0.1:{p}/",
    "http://2130706433:{p}/",
    "http://0x7f000001:{p}/",
    "http://0x7f.0.0.1:{p}/",
    "http://0177.0.0.1:{p}/",
    "http://017700000001:{p}/",
    "http://0:{p}/",
    "http://0.0.0.0:{p}/",
    "http://localhost:{p}/",
    "http://LOCALHOST.:{p}/",
    "http://canary.localhost:{p}/",
    "http://[::1]:{p}/",
    "http://[::]:{p}/",
    "http://[::ffff:127.0.0.1]:{p}/",
    "http://[::ffff:7f00:1]:{p}/",
    "http://[0:0:0:0:0:0:0:1]:{p}/",
    "http://[::1%25lo]:{p}/",
    "http://①②⑦.⓪.⓪.①:{p}/",
    "http://127。0。0。1:{p}/",
    "http://user@127.0.0.1:{p}/",
    "http://example.com@127.0.0.1:{p}/",
    "http://example.com\\@127.0.0.1:{p}/",
    "http://127.0.0.1:{p}\\@example.com/",
    "http://127.0.0.1:{p}#@example.com/",
    "http://%31%32%37.0.0.1:{p}/",
    "http://127.0.0.1.:{p}/",
    "HTTP://127.0.0.1:{p}/",
    "http://127.0.0.1\t:{p}/",
    " http://127.0.0.1:{p}/",
)


class Canary:
    """A server at the loopback that counts who connects, and answers as it is told."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.connects = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def canary(answer: bytes = b"HTTP/1.1 204 Fine\r\n\r\n") -> AsyncIterator[Canary]:
    bird = Canary(answer)
    four = await asyncio.start_server(bird.handle, "127.0.0.1", 0)
    bird.port = four.sockets[0].getsockname()[1]
    six = await asyncio.start_server(bird.handle, "::1", bird.port) if socket.has_ipv6 else four
    async with four, six:
        yield bird


@contextmanager
def answering(*answers: list[str]) -> Iterator[list[str]]:
    """Let names lead to *answers*, one after the other; the last one stays."""
    asked: list[str] = []

    def look_up(host: str, port: int, family: int) -> list[Any]:
        found = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "",
             (ip, port, 0, 0) if ":" in ip else (ip, port))
            for ip in found
        ]  # fmt: skip

    with patch.object(sender_module, "look_up", look_up):
        yield asked


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_leads_to_this_machine(spelling: str) -> None:
    async with canary() as bird, Sender(TargetRules(), timeout_s=3) as sender:
        told = await sender.send(spelling.format(p=bird.port), b"{}", {})
    assert bird.connects == 0
    assert not told.delivered and told.status == 0 and told.error


async def test_the_canary_sings_where_it_is_allowed() -> None:
    """The control of the one above: the same sender reaches it when the rules let it."""
    rules = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1", "[::1]"))
    async with canary() as bird, Sender(rules, timeout_s=3) as sender:
        for host in ("127.0.0.1", "[::1]"):
            told = await sender.send(f"http://{host}:{bird.port}/", b"{}", {})
            assert told.delivered, told
        assert bird.connects == 2
        refused = await sender.send(f"http://localhost:{bird.port}/", b"{}", {})
        assert refused.blocked and bird.connects == 2


@pytest.mark.parametrize("second", ["127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_a_name_that_answers_otherwise_the_second_time(second: str) -> None:
    """What was asked when the subscription was saved says nothing about now."""
    async with canary() as bird:
        with answering(["192.0.2.1"], [second]) as asked:
            async with Sender(TargetRules(), timeout_s=0.5) as sender:
                url = f"http://rebind.example:{bird.port}/"
                first = await sender.send(url, b"{}", {})
                assert not first.blocked and not first.delivered
            async with Sender(TargetRules(), timeout_s=0.5) as sender:
                told = await sender.send(url, b"{}", {})
    assert told.blocked and told.error == "leads to this machine", told
    assert len(asked) == 2 and bird.connects == 0


async def test_of_several_addresses_none_that_is_refused_is_tried() -> None:
    async with canary() as bird:
        with answering(["192.0.2.1", "127.0.0.1", "::1"]):
            async with Sender(TargetRules(), timeout_s=1) as sender:
                told = await sender.send(f"http://both.example:{bird.port}/", b"{}", {})
    assert bird.connects == 0 and not told.delivered


@pytest.mark.parametrize("inside", ["10.0.0.1", "169.254.169.254", "fd00:ec2::254", "127.0.0.1"])
async def test_an_approved_name_must_lead_outside(inside: str) -> None:
    rules = TargetRules(mode=ValidationMode.STRICT, allowed=("hook.example:443",))
    with answering([inside]):
        async with Sender(rules, timeout_s=1) as sender:
            told = await sender.send("https://hook.example/x", b"{}", {})
            assert told.blocked and told.error == "leads to an address that is not public"
            other = await sender.send("https://hook.example:444/x", b"{}", {})
            assert other.error == "leads to a host that is not approved"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with canary() as target:
        where = f"http://127.0.0.1:{target.port}/".encode()
        answer = b"HTTP/1.1 %d Go\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, where)
        rules = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1",))
        async with canary(answer) as first, Sender(rules, timeout_s=3) as sender:
            told = await sender.send(f"http://127.0.0.1:{first.port}/", b"{}", {})
        assert (told.status, told.error) == (status, "redirects are not followed")
        assert (first.connects, target.connects) == (1, 0)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with canary() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        with answering(["192.0.2.1"]):
            async with Sender(TargetRules(), timeout_s=0.3) as sender:
                await sender.send("http://away.example/", b"{}", {})
        assert proxy.connects == 0


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/", "must begin with https:// or http://"),
        ("//example.com/", "must begin with https:// or http://"),
        ("file:///etc/passwd", "must begin with https:// or http://"),
        ("https://", "has no host"),
        ("https://example.com:0/", "is not a URL"),
        ("https://example.com:65536/", "is not a URL"),
        ("https://example.com:x/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://a b/", "is not a URL"),
        ("https://example.com\r\nX: y/", "is not a URL"),
        ("https://u:p@example.com/", "must not hold a user or password"),
        ("https://u@example.com/", "must not hold a user or password"),
        ("https://localhost/", "leads to this machine"),
        ("https://example.com/", ""),
        ("http://10.0.0.1:8080/x?y", ""),  # inside, which only Strict refuses
        ("https://[2a00:1450::1]/", ""),
    ],
)
def test_urls(url: str, why: str) -> None:
    assert TargetRules().why_refused(url) == why


@pytest.mark.parametrize(
    ("allowed", "url", "is_allowed"),
    [
        ("", "https://example.com/", False),
        ("example.com", "https://example.com/", True),
        ("example.com", "https://EXAMPLE.com.:8443/", True),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("example.com:443", "https://example.com/", True),
        ("example.com:80", "https://example.com/", False),
        ("example.com", "https://sub.example.com/", False),
        ("example.com", "https://example.com.evil.org/", False),
        ("10.0.0.1:81", "http://10.0.0.1:81/", True),
        ("[::1]:81", "http://[::1]:81/", True),
        ("[::1]:81", "http://[::1]:82/", False),
        ("::1", "http://[::1]:82/", True),
    ],
)
def test_approved_hosts(allowed: str, url: str, is_allowed: bool) -> None:
    rules = TargetRules(mode=ValidationMode.STRICT, allowed=frozenset(allowed.split()))
    assert (rules.why_refused(url) == "") is is_allowed


@pytest.mark.parametrize(
    ("url", "is_plain"),
    [
        ("https://example.com./x?y=https://a@b/#z", True),
        ("https://EXAMPLE.com:8443", True),
        ("https://münchen.example/", True),
        ("https://xn--mnchen-3ya.example/", True),
        ("https://my_host/", True),
        ("https://10.0.0.1/", True),
        ("https://[2606:4700:0:0:0:0:0:1111]/", True),
        ("https://[2606:4700::1111]:8443/", True),
        ("https://①②⑦.⓪.⓪.①/", False),
    ],
)
def test_a_host_that_can_be_read_in_two_ways_is_none(url: str, is_plain: bool) -> None:
    assert (why_ambiguous(url) == "") is is_plain


def test_a_log_shows_no_secrets() -> None:
    shown = shown_url("https://u:p@example.com:8443/a/b?token=t#f")
    assert shown == "https://example.com:8443/a/b"
    assert shown_url("no url\n") == "(not a URL)"
