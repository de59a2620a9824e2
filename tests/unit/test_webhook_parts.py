"""Signatures, schedule and bodies of deliveries: laws, held against the official verifier and by chance."""

from __future__ import annotations

import base64
import json
import random
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from mdm_gitops.deliver.payload import MASK, RowEvent, body_of
from mdm_gitops.deliver.schedule import (
    DELAYS_S,
    JITTER,
    MAX_QUIET_S,
    delay_before_attempt_s,
    probe_delay_s,
)
from mdm_gitops.deliver.sender import _retry_after
from mdm_gitops.deliver.signing import generate_secret, read_secret, signature_headers
from mdm_gitops.errors import SettingsError

# --- signatures -----------------------------------------------------------------------------------


def test_the_official_verifier_accepts_what_is_signed_and_nothing_else() -> None:
    chance = random.Random(20_261_121)
    now = int(time.time())
    accepted = changed_accepted = 0
    for number in range(1_000):
        secret = generate_secret()
        body = json.dumps({"n": number, "x": chance.choices('aé🙂\\"\n', k=chance.randrange(99))})
        given_headers = signature_headers(
            read_secret(secret), message_id=f"evt_{number}", timestamp_s=now, body=body.encode()
        )
        verifier = Verifier(secret)
        verifier.verify(body, given_headers)
        accepted += 1
        changed_accepted += _is_accepted(verifier, *_one_bit_changed(body, given_headers, chance))
    assert (accepted, changed_accepted) == (1_000, 0)


def _is_accepted(verifier: Verifier, body: bytes, headers: dict[str, str]) -> bool:
    try:
        verifier.verify(body, headers)
    except (WebhookVerificationError, ValueError):
        return False
    return True


def _one_bit_changed(
    body: str, headers: dict[str, str], chance: random.Random
) -> tuple[bytes, dict[str, str]]:
    """Change one bit of the body, of the id, of the time (to another digit) or of the signature."""
    data, changed = bytearray(body.encode()), dict(headers)
    match chance.randrange(4):
        case 0:
            data[chance.randrange(len(data))] ^= 1  # stays text
        case 1:
            changed["webhook-id"] = headers["webhook-id"][:-1] + chr(
                ord(headers["webhook-id"][-1]) ^ 1
            )
        case 2:
            changed["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) ^ 1)
        case _:
            digest = bytearray(base64.b64decode(headers["webhook-signature"][3:]))
            digest[chance.randrange(32)] ^= 1 << chance.randrange(8)
            changed["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
    return bytes(data), changed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "secret",
        "whsec_!!!!",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        base64.b64encode(b"x" * 32).decode(),
        "WHSEC_" + base64.b64encode(b"x" * 32).decode(),
        "whsec_" + base64.b64encode(b"x" * 32).decode()[:-2],
    ],
)
def test_what_is_no_secret_is_not_told_either(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_secret(text)
    told = f"{refused.value} {refused.value.hint}"
    assert len(text) < 8 or text not in told
    assert refused.value.__cause__ is None


@given(st.binary(min_size=24, max_size=64))
def test_secrets_come_back(key: bytes) -> None:
    assert read_secret(f" whsec_{base64.b64encode(key).decode()}\n") == key


# --- schedule -------------------------------------------------------------------------------------


@given(
    attempt=st.integers(1, 30),
    retry_after_s=st.none() | st.floats(-1e6, 1e12),
    seed=st.integers(),
)
def test_waits_are_within_the_schedule(
    attempt: int, retry_after_s: float | None, seed: int
) -> None:
    wait = delay_before_attempt_s(attempt, retry_after_s=retry_after_s, chance=random.Random(seed))
    if attempt > len(DELAYS_S):
        assert wait is None
        return
    base = DELAYS_S[attempt - 1]
    assert wait is not None and base * (1 - JITTER) <= wait <= 2 * base * (1 + JITTER)
    if retry_after_s is None or retry_after_s <= base:
        assert wait <= base * (1 + JITTER)
    elif retry_after_s >= 2 * base:
        assert wait >= 2 * base * (1 - JITTER)


def test_waits_differ_so_that_receivers_are_not_met_by_all_at_once() -> None:
    chance = random.Random(1)
    waits = [delay_before_attempt_s(3, retry_after_s=None, chance=chance) for _ in range(1_000)]
    assert len(set(waits)) > 990
    numbers = [wait for wait in waits if wait is not None]
    assert min(numbers) < 0.85 * 300 and max(numbers) > 1.15 * 300


def test_all_attempts_take_75_hours() -> None:
    assert len(DELAYS_S) == 10 and DELAYS_S[0] == 0 and sorted(DELAYS_S) == list(DELAYS_S)
    assert 75 * 3600 <= sum(DELAYS_S) <= 76 * 3600


@given(probes=st.integers(0, 10**6), seed=st.integers())
def test_one_that_is_down_is_asked_seldom_but_asked(probes: int, seed: int) -> None:
    wait = probe_delay_s(probes, chance=random.Random(seed))
    assert 1 - JITTER <= wait <= MAX_QUIET_S * (1 + JITTER)


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (500, "", None),
        (500, "7", 7.0),
        (429, "", 60.0),
        (429, "7", 60.0),
        (429, "120", 120.0),
        (503, "120", 120.0),
        (504, "soon", 60.0),
        (500, "-5", None),
        (500, "9" * 400, None),
        (500, "٣", None),
        (500, "Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (500, "Thu, 99 Jan 99999 00:00:00 GMT", None),
    ],
)
def test_retry_after(status: int, text: str, expected: float | None) -> None:
    found = _retry_after(status, text)
    assert found == expected or (expected == 0.0 and found is not None and found <= 0)


# --- bodies ---------------------------------------------------------------------------------------


def _event(old: str | None, new: str | None) -> RowEvent:
    return RowEvent(
        event_id=1,
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        entity_id=1,
        entity_name="customer",
        record_id="0",
        action="data_updated",
        user="ana",
        old=old,
        new=new,
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(st.characters(exclude_categories=["Cs"])) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@given(
    old=st.none() | st.dictionaries(st.sampled_from("abcdef"), VALUES),
    new=st.none() | st.dictionaries(st.sampled_from("abcdef"), VALUES),
    shown=st.sets(st.sampled_from("abcdef")),
)
def test_what_has_changed_is_told_once_and_masked_unless_it_is_shown(
    old: dict[str, Any] | None, new: dict[str, Any] | None, shown: set[str]
) -> None:
    texts = [None if row is None else json.dumps(row) for row in (old, new)]
    changes = json.loads(body_of(_event(*texts), shown=shown))["changes"]
    before, after = old or {}, new or {}
    for name in {*before, *after}:
        pair = (before.get(name), after.get(name))
        is_same = json.dumps(pair[0]) == json.dumps(pair[1])
        if is_same or (isinstance(pair[0], dict | list) and pair[0] == pair[1]):
            assert name not in changes or not is_same
            continue
        if name not in changes:  # True == 1 within a list or object
            assert pair[0] == pair[1]
            continue
        masked = tuple(None if value is None else MASK for value in pair)
        assert tuple(changes[name].values()) == (pair if name in shown else masked)
    assert set(changes) <= {*before, *after}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=20) | st.integers())
def test_numbers_keep_their_digits(number: Decimal | int) -> None:
    text = format(number, "f") if isinstance(number, Decimal) else str(number)
    body = body_of(_event(None, f'{{"a": {text}, "b": [{text}]}}'), shown=("a", "b"))
    assert f'"a":{{"old":null,"new":{text}}}'.encode() in body
    assert f'"new":[{text}]'.encode() in body


def test_numbers_of_any_length_are_no_bomb() -> None:
    digits = "9" * 131_072  # the longest that the database has
    for text in (digits, f"1.{digits}", "1e999999999", "-1E+999999999"):
        started = time.process_time()
        body = body_of(_event('{"a": "1"}', f'{{"a": {text}}}'), shown=("a",))
        assert text.encode() in body and len(body) < 200_000
        assert time.process_time() - started < 1


def test_a_number_is_not_its_text() -> None:
    body = json.loads(body_of(_event('{"a": "1", "b": [1]}', '{"a": 1, "b": [1]}'), shown=("a",)))
    assert body["changes"] == {"a": {"old": "1", "new": 1}}


def test_a_column_that_is_not_known_any_more_is_masked() -> None:
    event = _event('{"salary": 1, "code": "A"}', '{"salary": 2, "code": "B"}')
    changes = json.loads(body_of(event, shown=("code", "pay")))["changes"]
    assert changes == {
        "salary": {"old": MASK, "new": MASK},
        "code": {"old": "A", "new": "B"},
    }


# --- what the guide says --------------------------------------------------------------------------


def test_the_code_of_the_guide_verifies() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/webhooks.md").read_text("utf-8")
    code = guide.partition("```python\n")[2].partition("```")[0]
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 - it is ours
    secret, body = generate_secret(), b'{"a": 1}'
    for age_s, changed, expected in ((0, b"", True), (0, b" ", False), (301, b"", False)):
        headers = signature_headers(
            read_secret(secret), message_id="evt_1", timestamp_s=int(time.time()) - age_s, body=body
        )
        headers["webhook-signature"] = f"v1,AAAA {headers['webhook-signature']}"
        assert scope["is_genuine"](secret, headers, body + changed) is expected
