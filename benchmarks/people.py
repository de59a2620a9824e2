"""Labelled people: a generated table in which it is known which rows mean the same person.

The corruption follows the published model of the FEBRL generator: P. Christen, "Probabilistic Data
Generation for Deduplication and Data Linkage", IDEAL 2005 (LNCS 3578, pages 109-116), with the errors of
sound and of scanning that P. Christen and A. Pudjijono, "Accurate Synthetic Generation of Realistic
Personal Information", PAKDD 2009 (LNAI 5476, pages 507-514), add to it. An original has a Zipf-like
number of duplicates, up to three; a duplicate has one to four changes, at most two in a field: a letter
inserted, left out, replaced by its neighbour on the keyboard or exchanged with the next, a sound written
otherwise, a sign misread, a space lost, a value missing, given name and surname or day and month swapped.

Not in that model, and harder: a seventh of the people live with another person, and share surname,
address and telephone with somebody they are not. Frequencies of names fall as 1/rank. The same seed
gives the same rows everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate, combinations
from typing import Final

COLUMNS: Final = (
    "given_name",
    "surname",
    "birth_date",
    "street",
    "city",
    "postcode",
    "phone",
    "email",
)
_GIVEN: Final = (
    "james mary john patricia robert jennifer michael linda william elizabeth david barbara richard"
    " susan joseph jessica thomas sarah charles karen christopher nancy daniel lisa matthew betty"
    " anthony margaret mark sandra donald ashley steven kimberly paul emily andrew donna joshua"
    " michelle kenneth dorothy kevin carol brian amanda george melissa edward deborah ronald"
    " stephanie timothy rebecca jason sharon jeffrey laura ryan cynthia jacob kathleen gary amy"
    " nicholas shirley eric angela jonathan helen stephen anna larry brenda justin pamela scott"
    " nicole brandon samantha benjamin katherine samuel emma gregory ruth frank christine alexander"
    " catherine raymond debra patrick rachel jack carolyn dennis janet jerry virginia tyler maria"
    " aaron heather jose diane henry julie adam joyce douglas victoria nathan kelly peter christina"
    " zachary joan kyle evelyn walter lauren harold judith jeremy olivia ethan frances carl martha"
)
_SURNAMES: Final = (
    "smith johnson williams brown jones garcia miller davis rodriguez martinez hernandez lopez"
    " gonzalez wilson anderson thomas taylor moore jackson martin lee perez thompson white harris"
    " sanchez clark ramirez lewis robinson walker young allen king wright scott torres nguyen hill"
    " flores green adams nelson baker hall rivera campbell mitchell carter roberts phillips evans"
    " turner parker collins edwards stewart morris murphy cook rogers morgan peterson cooper reed"
    " bailey bell gomez kelly howard ward cox diaz richardson wood watson brooks bennett gray james"
    " reyes cruz hughes price myers long foster sanders ross morales powell sullivan russell ortiz"
    " jenkins gutierrez perry butler barnes fisher henderson coleman simmons patterson jordan"
)
_STREETS: Final = (
    "main church high park station victoria green mill school north london west east queen south"
    " king manor grange york springfield windsor highfield alexandra george mount lime chestnut"
    " maple cedar elm oak pine walnut willow juniper magnolia sycamore poplar spruce hazel birch"
)
_KINDS: Final = ("street", "road", "avenue", "lane", "drive", "close", "court")
_BEGINNINGS: Final = (
    "ash bar car dun ever fair glen hart ing kirk lang mar nor os pem quar ros stan thorn wal"
)
_MIDDLES: Final = ("", "ber", "den", "ling", "ring", "ches", "win", "mon")
_ENDS: Final = "ton ford ham ley worth field wick by stead bury mouth dale"
_KEYS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm", "1234567890")
_SOUNDS: Final = (
    *(("ph", "f"), ("ck", "k"), ("th", "t"), ("ee", "ea"), ("ie", "y"), ("c", "k"), ("s", "z")),
    *(("v", "f"), ("w", "wh"), ("ou", "oo"), ("gh", "g"), ("mb", "m"), ("ll", "l"), ("tt", "t")),
    *(("nn", "n"), ("rr", "r"), ("y", "i"), ("x", "ks"), ("qu", "kw"), ("ai", "ay"), ("sh", "sch")),
)
_SCANNED: Final = (
    *(("rn", "m"), ("m", "rn"), ("cl", "d"), ("0", "o"), ("1", "l"), ("5", "s"), ("8", "b")),
    *(("l", "1"), ("o", "0"), ("s", "5"), ("b", "8"), ("g", "9"), ("e", "c"), ("h", "b")),
    *(("u", "v"), ("vv", "w"), ("6", "b"), ("i", "l"), ("n", "ri"), ("2", "z")),
)
Row = tuple[str | None, ...]  # values in the order of COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """*persons* says, for each of *rows*, which person it means."""

    rows: Sequence[Row]
    persons: Sequence[int]

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """All pairs of row numbers, the lower first, that mean the same person."""
        by_person: dict[int, list[int]] = {}
        for number, person in enumerate(self.persons):
            by_person.setdefault(person, []).append(number)
        return frozenset(
            pair for numbers in by_person.values() for pair in combinations(numbers, 2)
        )


def people(
    number: int, *, seed: int = 2005, duplicates: float = 0.2, households: float = 1 / 7
) -> People:
    """Return *number* rows, of which about the part *duplicates* repeat a person.

    *households* is the part of the people who live with the one before.
    """
    chance = random.Random(seed)
    makes = _Maker(chance, number, households)
    rows: list[tuple[int, Row]] = []
    person = 0
    while len(rows) < number:
        original = makes.person()
        rows.append((person, original))
        # Of 100 originals 18 have duplicates: 12 one, 4 two, 2 three.
        copies = chance.choices((0, 1, 2, 3), _shares(duplicates))[0]
        rows.extend((person, corrupted(chance, original)) for _ in range(copies))
        person += 1
    del rows[number:]
    chance.shuffle(rows)
    return People(rows=[row for _, row in rows], persons=[person for person, _ in rows])


def _shares(duplicates: float) -> tuple[float, ...]:
    # d duplicates for each original that has some: (1 * 6 + 2 * 2 + 3 * 1) / 9
    having = duplicates / (1 - duplicates) / (13 / 9)
    return (1 - having, having * 6 / 9, having * 2 / 9, having * 1 / 9)


class _Maker:
    def __init__(self, chance: random.Random, number: int, households: float) -> None:
        self._chance = chance
        self._households = households
        tail = max(100, number // 20)
        self._given = _Ranked(chance, _GIVEN.split())
        self._surnames = _Ranked(chance, [*_SURNAMES.split(), *self._invented(tail)])
        self._streets = _Ranked(chance, [*_STREETS.split(), *self._invented(tail // 4)])
        self._cities = _Ranked(chance, list(self._invented(max(40, number // 200))))
        self._codes: dict[str, list[str]] = {}
        self._last: Row | None = None

    def person(self) -> Row:
        chance, last = self._chance, self._last
        given = self._given.draw()
        if last is not None and chance.random() < self._households:
            surname, street, city, postcode, phone = (last[n] for n in (1, 3, 4, 5, 6))
        else:
            surname = self._surnames.draw()
            kind = chance.choice(_KINDS)
            street = f"{chance.randint(1, 250)} {self._streets.draw()} {kind}"
            city = self._cities.draw()
            postcode = chance.choice(self._codes_of(city))
            phone = f"0{chance.randint(1, 9)} {chance.randint(0, 99_999_999):08d}"
        born = date(1930, 1, 1) + timedelta(days=chance.randrange(28_000))
        email = None
        if chance.random() < 0.6:
            sign, number = chance.choice((".", "_", "")), chance.choice(("", str(born.year % 100)))
            email = f"{given}{sign}{surname}{number}@{chance.choice(_PROVIDERS)}"
        row = (given, surname, born.isoformat(), street, city, postcode, phone, email)
        self._last = row
        return row

    def _codes_of(self, city: str) -> list[str]:
        if city not in self._codes:
            first = self._chance.randint(10, 989)
            self._codes[city] = [f"{first + n // 10:03d}{n % 10}0" for n in range(12)]
        return self._codes[city]

    def _invented(self, number: int) -> Iterator[str]:
        chance, known = self._chance, set[str]()
        beginnings, ends = _BEGINNINGS.split(), _ENDS.split()
        while len(known) < number:
            name = chance.choice(beginnings) + chance.choice(_MIDDLES) + chance.choice(ends)
            # Of more than 10,000 names two beginnings, and so on: there are not enough with one.
            for _ in range(1 + len(known) // 10_000):
                name = name if name not in known else chance.choice(beginnings) + name
            if name not in known:
                known.add(name)
                yield name


_PROVIDERS: Final = ("example.com", "example.org", "mail.example", "post.example")


class _Ranked:
    """Words whose frequency falls as 1/rank."""

    def __init__(self, chance: random.Random, words: Sequence[str]) -> None:
        self._chance = chance
        self._words = words
        self._weights = list(accumulate(1 / (rank + 4) for rank in range(len(words))))

    def draw(self) -> str:
        return self._chance.choices(self._words, cum_weights=self._weights)[0]


# --- corruption -----------------------------------------------------------------------------------


def corrupted(chance: random.Random, original: Row) -> Row:
    """Return *original* with one to four mistakes."""
    row = list(original)
    changed = [0] * len(row)
    for _ in range(chance.choices((1, 2, 3, 4), (4, 3, 2, 1))[0]):
        kind = chance.random()
        if kind < 0.05:
            row[0], row[1] = row[1], row[0]
            continue
        fields = [n for n, value in enumerate(row) if value and changed[n] < 2]
        field = chance.choice(fields)
        changed[field] += 1
        value = row[field]
        assert value is not None, "only fields with a value are chosen"
        if kind < 0.15:
            row[field] = None
        elif COLUMNS[field] == "birth_date":
            row[field] = _other_date(chance, value)
        else:
            row[field] = _edited(chance, value)
    return tuple(row)


def _other_date(chance: random.Random, text: str) -> str:
    day = date.fromisoformat(text)
    if chance.random() < 0.25 and day.day <= 12:
        return day.replace(month=day.day, day=day.month).isoformat()
    part = chance.randrange(3)
    if part == 0:
        return day.replace(
            year=day.year + chance.choice((-10, -1, 1, 10)), day=min(day.day, 28)
        ).isoformat()
    if part == 1:
        return day.replace(month=chance.randint(1, 12), day=min(day.day, 28)).isoformat()
    return day.replace(day=chance.randint(1, 28)).isoformat()


def _edited(chance: random.Random, text: str) -> str | None:
    kind = chance.choices(range(7), (20, 25, 25, 15, 10, 5, 5))[0]
    at = chance.randrange(len(text))
    if kind == 0:
        return text[:at] + _near(chance, text[at]) + text[at:]
    if kind == 1:
        return text[:at] + text[at + 1 :] or None
    if kind == 2:
        return text[:at] + _near(chance, text[at]) + text[at + 1 :]
    if kind == 3:
        return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
    if kind == 6:
        return text.replace(" ", "", 1)
    found = [(old, new) for old, new in (_SOUNDS if kind == 4 else _SCANNED) if old in text]
    if not found:
        return text[:at] + text[at + 1 :] or None
    old, new = chance.choice(found)
    return text.replace(old, new, 1)


def _near(chance: random.Random, sign: str) -> str:
    for keys in _KEYS:
        at = keys.find(sign)
        if at >= 0:
            return keys[max(0, min(len(keys) - 1, at + chance.choice((-1, 1))))]
    return sign
