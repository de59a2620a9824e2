"""Signing in from a program: the port that a browser comes back to, and what is kept and given to whom."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mdm_gitops.client.loopback import Loopback
from mdm_gitops.client.profiles import Profiles, Tokens, choose, config_folder
from mdm_gitops.client.sign_in import SignedIn, SignIn
from mdm_gitops.errors import AuthRequired, InputError, MdmError, NotFound, SignInFailed

pytestmark = pytest.mark.anyio
ISSUER = "https://id.example"


async def test_only_the_right_answer_ends_the_wait() -> None:
    async with Loopback() as loopback, httpx2.AsyncClient() as browser:
        waiting = asyncio.ensure_future(loopback.answer("right", within_s=30))
        await asyncio.sleep(0)
        for path, status in (
            ("", 400),
            ("?code=x", 400),
            ("?code=x&state=wrong", 400),
            ("?code=x&state=right&code=y", 400),
        ):
            assert (await browser.get(loopback.address + path)).status_code == status
        assert (await browser.post(f"{loopback.address}?code=x&state=right")).status_code == 404
        assert (await browser.get(loopback.address.replace("/callback", "/"))).status_code == 404
        assert not waiting.done()
        page = await browser.get(f"{loopback.address}?code=x&state=right&iss=i")
        assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
        assert await waiting == {"code": "x", "state": "right", "iss": "i"}
        assert (await browser.get(f"{loopback.address}?code=z&state=right")).status_code in (
            200,
            400,
        )


async def test_it_listens_on_this_machine_only_and_is_gone_afterwards() -> None:
    async with Loopback() as loopback:
        assert loopback.address.startswith("http://127.0.0.1:")
        with pytest.raises(SignInFailed):
            await loopback.answer("s", within_s=0.01)
    async with httpx2.AsyncClient() as browser:
        with pytest.raises(httpx2.ConnectError):
            await browser.get(loopback.address)


class Provider(httpx2.AsyncBaseTransport):
    """An identity provider that answers what it is told to."""

    def __init__(self, *answers: Any, **described: Any) -> None:
        self.answers = list(answers)
        self.described = {
            "issuer": ISSUER,
            "token_endpoint": f"{ISSUER}/token",
            "device_authorization_endpoint": f"{ISSUER}/device",
            **described,
        }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.startswith("/.well-known/"):
            return httpx2.Response(200, json=self.described)
        status, document = self.answers.pop(0)
        return httpx2.Response(status, json=document)


CODE = (200, {"device_code": "d", "user_code": "U", "verification_uri": ISSUER, "interval": 0})
PENDING = (400, {"error": "authorization_pending"})


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return Profiles(tmp_path / "config")


def sign_in(profiles: Profiles, provider: Provider) -> SignIn:
    profile = profiles.set("default", issuer=ISSUER, client_id="cli")
    return SignIn(profile, http=httpx2.AsyncClient(transport=provider))


async def test_a_code_is_waited_for(profiles: Profiles) -> None:
    provider = Provider(CODE, PENDING, PENDING, (200, {"access_token": "a", "refresh_token": "r"}))
    told: list[Any] = []
    tokens = await sign_in(profiles, provider).with_device(told.append)
    assert (tokens.access_token, tokens.refresh_token) == ("a", "r")
    assert (told[0].user_code, told[0].address) == ("U", ISSUER)
    assert "'a'" not in repr(tokens) and "'r'" not in repr(tokens)


@pytest.mark.parametrize(
    ("answers", "described", "said"),
    [
        ([CODE, (400, {"error": "access_denied"})], {}, "the sign-in was refused"),
        ([CODE, (400, {"error": "expired_token"})], {}, "the code has expired"),
        ([CODE, (400, {"error": "x\x1b[31m"})], {}, "refused: x[31m"),
        ([(400, {"error": "unauthorized_client"})], {}, "refused: unauthorized_client"),
        ([CODE, (200, {})], {}, "gave no access token"),
        ([CODE, (500, {})], {}, "answered with status 500"),
        ([], {"issuer": "https://evil.example"}, "calls itself by another name"),
        ([], {"device_authorization_endpoint": None}, "offers no device authorization"),
        ([], {"device_authorization_endpoint": "http://id.example/d"}, "reached by https"),
    ],
)
async def test_what_a_provider_may_answer(
    profiles: Profiles, answers: list[Any], described: dict[str, Any], said: str
) -> None:
    with pytest.raises(MdmError, match=said.replace("[", r"\[")):
        await sign_in(profiles, Provider(*answers, **described)).with_device(lambda code: None)


def test_a_profile_without_a_provider(profiles: Profiles) -> None:
    with pytest.raises(InputError, match="does not say where to sign in"):
        SignIn(profiles.get())


async def test_a_sign_in_that_is_gone(profiles: Profiles) -> None:
    credential = SignedIn(profiles, "default")
    assert await credential.renewed() is False
    with pytest.raises(AuthRequired, match="has ended"):
        await credential.headers()


# --- profiles -------------------------------------------------------------------------------------


def test_what_is_secret_is_for_its_owner_alone(profiles: Profiles) -> None:
    profiles.store_api_key("default", "the-key")
    profiles.store_tokens("default", Tokens(access_token="the-token"))
    profiles.set("default", url="https://mdm.example")
    file = profiles.folder / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(profiles.folder.stat().st_mode) == 0o700
    assert "the-" not in (profiles.folder / "config.json").read_text()
    profiles.remove("default")
    assert "the-" not in file.read_text()


def test_what_is_chosen(profiles: Profiles) -> None:
    profiles.set("prod", url="https://prod.example/", key_env="PROD")
    profiles.set("test", url="https://test.example")
    profiles.store_api_key("test", "test-key")
    profiles.use("test")
    nothing = choose(profiles, variables={})
    assert (nothing.url, nothing.api_key) == ("https://test.example", "test-key")
    exported = {"MDM_URL": "https://other.example", "MDM_API_KEY": "other-key"}
    by_variable = choose(profiles, variables=exported)
    assert (by_variable.url, by_variable.api_key) == ("https://other.example", "other-key")
    assert by_variable.is_profile_server is False
    named = choose(profiles, profile="test", variables=exported)
    assert (named.url, named.api_key) == ("https://test.example", "test-key")
    given = choose(profiles, url="https://x.example", api_key="x", profile="test", variables={})
    assert (given.url, given.api_key) == ("https://x.example", "x")
    # The key of a profile stays with its server, however that is spelt, and goes nowhere else.
    for url, key in (
        ("https://TEST.example:443/", "test-key"),
        ("http://test.example", None),
        ("https://test.example:8443", None),
        ("https://test.example.evil.example", None),
    ):
        assert choose(profiles, url=url, variables={}).api_key == key, url
    assert "test-key" not in repr(nothing)
    with pytest.raises(InputError, match=r"\$PROD, which is not set"):
        choose(profiles, profile="prod", variables={})
    with pytest.raises(NotFound, match="'pord'"):
        choose(profiles, profile="pord", variables={})


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_files_that_were_spoilt_are_named(profiles: Profiles, text: str) -> None:
    profiles.folder.mkdir()
    (profiles.folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json is not"):
        profiles.get()


def test_a_key_may_stand_in_a_file(profiles: Profiles, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("file-key\n")
    profile = profiles.set("default", key_file=str(tmp_path / "key"))
    assert profiles.api_key(profile) == "file-key"
    (tmp_path / "key").unlink()
    with pytest.raises(InputError, match="has its key in"):
        profiles.api_key(profile)


def test_where_profiles_are() -> None:
    assert config_folder({"MDM_CONFIG_DIR": "/x"}) == Path("/x")
    assert config_folder({"XDG_CONFIG_HOME": "/x"}) == Path("/x/mdm-gitops")
    assert config_folder({}) == Path.home() / ".config/mdm-gitops"


def test_unknown_values_of_a_later_version_are_kept(profiles: Profiles) -> None:
    profiles.folder.mkdir()
    document = {"profiles": {"default": {"url": "https://a.example", "later": 1}}}
    (profiles.folder / "config.json").write_text(json.dumps(document))
    profiles.set("default", key_env="K")
    kept = json.loads((profiles.folder / "config.json").read_text())["profiles"]["default"]
    assert kept == {"url": "https://a.example", "later": 1, "key_env": "K"}
