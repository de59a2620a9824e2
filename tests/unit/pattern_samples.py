"""Random patterns, written as a person could write them, and texts near what they cover."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from mdm_gitops.model.charset import CharSet
from mdm_gitops.model.pattern_parser import (
    Boundary,
    Chars,
    Choice,
    Part,
    Repeat,
    Sequence,
    parse_pattern,
)

# Characters whose case is told differently by different programs, and the usual suspects.
LETTERS: Final = "abkszABKSZ01_ -.,/é\n\r\tÉßẞſKσςΣμµ€😀ͅİıǅǆΩΩ가À\U0010ffff\x7f\x01'\\%"
_SPECIAL: Final = r"\.+*?()|[]{}^$"
_ESCAPES: Final = (
    *(
        [
            r"\d",
            r"\D",
            r"\w",
            r"\W",
            r"\s",
            r"\S",
            r"\n",
            r"\t",
            r"\r",
            r"\f",
            r"\v",
            r"\a",
            r"\.",
            r"\-",
            r"\\",
            r"\]",
            r"\x41",
            r"\x{e9}",
            r"\x{1F600}",
            r"\/",
            r"\'",
            r"\%",
        ]
    ),
    *([r"\pL", r"\p{Lu}", r"\P{Ll}", r"\p{^Nd}", r"\p{Greek}", r"\PN", r"\p{Cyrillic}", r"\p{L}"]),
)
_POSIX: Final = [
    "[:alpha:]",
    "[:^digit:]",
    "[:word:]",
    "[:space:]",
    "[:punct:]",
    "[:upper:]",
    "[:lower:]",
    "[:cntrl:]",
    "[:print:]",
    "[:graph:]",
    "[:xdigit:]",
    "[:blank:]",
    "[:ascii:]",
    "[:alnum:]",
    "[:^space:]",
    "[:digit:]",
]
_COUNTS: Final = [
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "{0}",
    "{1}",
    "{2}",
    "{0,2}",
    "{1,3}",
    "{2,}",
    "{0,}",
    "{3}?",
    "{1,2}?",
    "{0,1}",
    "{300}",
    "{2,260}",
    "{256,}",
]


def pattern(rng: random.Random) -> str:
    text = _choice(rng, 3)
    if rng.random() < 0.2:
        text = f"^{text}$"
    if rng.random() < 0.15:
        text = f"(?{rng.choice(['i', 's', 'is', 'm', 'U', 'i-s', 'ims'])})" + text
    if rng.random() < 0.15:
        text = _mutated(rng, text, r"\[]()?*+{}|^$-:,1ab.ipd")
    return text


def _choice(rng: random.Random, depth: int) -> str:
    return "|".join(_sequence(rng, depth) for _ in range(rng.choice([1, 1, 1, 1, 2, 3])))


def _sequence(rng: random.Random, depth: int) -> str:
    return "".join(_quantified(rng, depth) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])))


def _quantified(rng: random.Random, depth: int) -> str:
    count = rng.choice(_COUNTS) if rng.random() < 0.35 else ""
    return _atom(rng, depth) + count


def _atom(rng: random.Random, depth: int) -> str:
    roll = rng.random()
    if roll < 0.4:
        return _literal(rng.choice(LETTERS))
    if roll < 0.5:
        return rng.choice(_ESCAPES)
    if roll < 0.58:
        return rng.choice([".", ".", r"\b", r"\B", r"\b"])
    if roll < 0.8 or depth == 0:
        return _class(rng)
    opening = rng.choice(["(", "(?:", "(?P<n>", "(?<n>", "(?i:", "(?s:", "(?-i:", "(?is-m:"])
    return f"{opening}{_choice(rng, depth - 1)})"


def _literal(character: str) -> str:
    return "\\" + character if character in _SPECIAL else character


def _class(rng: random.Random) -> str:
    members = [_member(rng) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
    first = rng.choice(["", "", "", "]", "-"])
    last = rng.choice(["", "", "", "-"])
    return f"[{rng.choice(['', '', '^'])}{first}{''.join(members)}{last}]"


def _member(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.4:
        return _in_class(rng.choice(LETTERS))
    if roll < 0.6:
        low, high = sorted(rng.sample(LETTERS, 2))
        return f"{_in_class(low)}-{_in_class(high)}"
    if roll < 0.75:
        return rng.choice(_POSIX)
    return rng.choice([escape for escape in _ESCAPES if escape != r"\b"])


def _in_class(character: str) -> str:
    return "\\" + character if character in r"\]-^[" else character


def _mutated(rng: random.Random, text: str, alphabet: str) -> str:
    at = rng.randint(0, len(text))
    kind = rng.choice(["insert", "delete", "replace"])
    new = "" if kind == "delete" else rng.choice(alphabet)
    return text[:at] + new + text[at + (kind != "insert") :]


def texts(rng: random.Random, accepted: str, count: int) -> list[str]:
    """Texts for a pattern that was accepted: half of them meant to match, or nearly."""
    tree = parse_pattern(accepted)
    found: list[str] = []
    for number in range(count):
        if number % 2:
            found.append("".join(rng.choices(LETTERS, k=rng.choice([0, 1, 1, 2, 3, 5]))))
            continue
        text = _sample(rng, tree)
        found.append(_mutated(rng, text, LETTERS) if rng.random() < 0.3 else text)
    return found


def _sample(rng: random.Random, part: Part) -> str:
    match part:
        case Chars(charset=charset):
            return chr(_code_point(rng, charset))
        case Sequence(items=items):
            return "".join(_sample(rng, item) for item in items)
        case Choice(items=items):
            return _sample(rng, rng.choice(items))
        case Repeat(item=item, least=least, most=most):
            top = least + 3 if most is None else rng.choice([most, min(most, least + 3)])
            return "".join(_sample(rng, item) for _ in range(rng.randint(least, top)))
        case Boundary():
            return ""
        case _:
            raise AssertionError(part)


def _code_point(rng: random.Random, charset: CharSet) -> int:
    usual = _usual(charset)
    if usual and rng.random() < 0.7:
        return rng.choice(usual)
    low, high = rng.choice(charset)
    return rng.choice([low, high, rng.randint(low, high)])


@lru_cache
def _usual(charset: CharSet) -> list[int]:
    return [ord(c) for c in LETTERS if any(low <= ord(c) <= high for low, high in charset)]
