"""Entities, rows and well-typed filters for tests: small, and full of values that hurt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from random import Random
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from mdm_gitops.filter import SYSTEM_COLUMNS, Expr, FilterContext
from mdm_gitops.filter.ast import (
    And,
    Between,
    Call,
    ColumnRef,
    Comparison,
    Function,
    Literal,
    LiteralKind,
    Match,
    Membership,
    Not,
    NullTest,
    Operand,
    Operator,
    Or,
    TextMatch,
)
from mdm_gitops.model import DataType, Definitions, Entity, Project
from tests.unit.filter_oracle import Follow

COUNTRY: Final = Entity.model_validate(
    {
        "name": "Country",
        "domain": "geo",
        "keyColumns": ["code"],
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False},
            {"name": "Name", "dataType": "text"},
            {"name": "population", "dataType": "long"},
            {"name": "since", "dataType": "date"},
            {"name": "facts", "dataType": "json"},
            {"name": "neighbour", "dataType": "string", "reference": {"entity": "country"}},
        ],
    }
)
ITEM: Final = Entity.model_validate(
    {
        "name": "item",
        "domain": "geo",
        "keyColumns": ["code"],
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False},
            {"name": "Title", "dataType": "text"},
            {"name": "owner", "dataType": "string"},
            {"name": "qty", "dataType": "int"},
            {"name": "big", "dataType": "long"},
            {"name": "amount", "dataType": "decimal"},
            {"name": "active", "dataType": "bool"},
            {"name": "born", "dataType": "date"},
            {"name": "seen", "dataType": "datetime"},
            {"name": "token", "dataType": "guid"},
            {"name": "doc", "dataType": "json"},
            {"name": "country", "dataType": "string", "reference": {"entity": "Country"}},
            {
                "name": "parent",
                "dataType": "string",
                "reference": {"entity": "item", "column": "code"},
            },
        ],
    }
)
DEFINITIONS: Final = Definitions(
    project=Project(name="test", api_version="mdm-gitops/v1"),
    entities=MappingProxyType({"country": COUNTRY, "item": ITEM}),
)
REFERENCES: Final = {
    ("item", "country"): Follow(column="country", target="country", key="code"),
    ("item", "parent"): Follow(column="parent", target="item", key="code"),
    ("country", "neighbour"): Follow(column="neighbour", target="country", key="code"),
}
TYPES: Final = {
    entity.folded: {column.folded: column.data_type for column in entity.columns}
    | dict(SYSTEM_COLUMNS)
    for entity in (COUNTRY, ITEM)
}
CONTEXT: Final = FilterContext(
    today=date(2024, 2, 29),
    now=datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    me="a%b",
    groups=("me", "é", "\\"),
)

_TEXTS: Final = (
    "", "a", "A", "ab", "aB", "a%b", "a_b", "axb", "a\\b", "a\\%b", "%", "_", "\\", "\\\\", "é", "É",
    "ß", "STRASSE", "Straße", "😀", "日本", "a'b", "a]b", "a\nb", " ", "Z", "zz", "null", "me", "5",
    "ǆ", "\U0010ffff", "\ue000", "\t", "--", "';", "%s", "%(f0)s", "$1", "e\u0301", "x" * 300,
)  # fmt: skip
_WHOLE: Final = (0, 1, -1, 2, 5, -(2**31), 2**31 - 1)
_LONGS: Final = (*_WHOLE, 2**31, -(2**63), 2**63 - 1)
_DECIMALS: Final = tuple(
    map(Decimal, ("0", "0.1", "0.10", "-1.5", "5", "1000", "99999999999999999999.99", "1E-20"))
)
_DATES: Final = tuple(
    map(date.fromisoformat, ("0001-01-01", "1970-01-01", "2024-02-28", "2024-02-29", "9999-12-31"))
)
_MOMENTS: Final = tuple(
    datetime.fromisoformat(text).replace(tzinfo=UTC)
    for text in (
        "0001-01-01T00:00:00",
        "2024-02-29T00:00:00",
        "2024-02-29T12:30:00",
        "2024-02-29T12:30:00.000001",
        "9999-12-31T23:59:59.999999",
    )
)
_GUIDS: Final = (UUID(int=0), UUID(int=1), UUID(int=2**128 - 1))
_VALUES: Final[dict[DataType, tuple[Any, ...]]] = {
    DataType.STRING: _TEXTS,
    DataType.TEXT: _TEXTS,
    DataType.INT: _WHOLE,
    DataType.LONG: _LONGS,
    DataType.DECIMAL: _DECIMALS,
    DataType.BOOL: (True, False),
    DataType.DATE: _DATES,
    DataType.DATETIME: _MOMENTS,
    DataType.GUID: _GUIDS,
    DataType.JSON: ('{"a": 1}', "null", "[]"),
}
_KEYS: Final = {"country": ("CH", "DE", "a%b", "é"), "item": tuple("abcdefghijkl")}
_TEXT_TYPES: Final = (DataType.STRING, DataType.TEXT)
_ORDERED: Final = (
    *_TEXT_TYPES,
    DataType.INT,
    DataType.LONG,
    DataType.DECIMAL,
    DataType.DATE,
    DataType.DATETIME,
)
_NUMBERS: Final = (DataType.INT, DataType.LONG, DataType.DECIMAL)


def value(rng: Random, data_type: DataType) -> Any:
    if data_type in _TEXT_TYPES and rng.random() < 0.3:
        return "".join(_character(rng) for _ in range(rng.randrange(6)))
    if data_type is DataType.DECIMAL and rng.random() < 0.3:
        return Decimal(rng.randint(-(10**12), 10**12)).scaleb(-3)
    return rng.choice(_VALUES[data_type])


def _character(rng: Random) -> str:
    top = rng.choice([0x7F, 0xFF, 0xD7FF])
    return chr(rng.randint(1, top) if rng.random() < 0.9 else rng.randint(0xE000, 0x10FFFF))


def row(rng: Random, entity: str, key: str) -> dict[str, Any]:
    made = {
        name: None if rng.random() < 0.3 else value(rng, data_type)
        for name, data_type in TYPES[entity].items()
    }
    made |= {"code": key, "_sys_id": identity(entity, key), "_sys_version": 1}
    for (owner, name), follow in REFERENCES.items():
        if owner == entity:
            made[name] = rng.choice([None, *_KEYS[follow.target]])
    return made


def identity(entity: str, key: str) -> UUID:
    return UUID(int=int.from_bytes(f"{entity}/{key}".encode()))


@dataclass(kw_only=True)
class Case:
    """Rows of both entities, filters on items, and what may be seen through references."""

    rows: dict[str, list[dict[str, Any]]]
    filters: list[Expr]
    visible: dict[str, Expr]


def case(rng: Random, *, filters: int) -> Case:
    everything = {entity: [row(rng, entity, key) for key in keys] for entity, keys in _KEYS.items()}
    hidden = [entity for entity in _KEYS if rng.random() < 0.25]
    return Case(
        rows=everything,
        filters=[expression(rng, "item", 3) for _ in range(filters)],
        visible={entity: expression(rng, entity, 1) for entity in hidden},
    )


def expression(rng: Random, entity: str, depth: int) -> Expr:
    roll = rng.random() if depth else 0
    if roll < 0.4:
        return _condition(rng, entity)
    if roll < 0.5:
        return Not(item=expression(rng, entity, depth - 1))
    items = tuple(expression(rng, entity, depth - 1) for _ in range(rng.randint(2, 3)))
    return And(items=items) if roll < 0.8 else Or(items=items)


def _columns(entity: str) -> list[tuple[tuple[str, ...], DataType]]:
    own = [((name,), data_type) for name, data_type in TYPES[entity].items()]
    led = [
        ((name, column), data_type)
        for (owner, name), follow in REFERENCES.items()
        if owner == entity
        for column, data_type in TYPES[follow.target].items()
    ]
    return own + led


_COLUMNS: Final = {entity: _columns(entity) for entity in TYPES}
_ALL_BUT_JSON: Final = tuple(each for each in DataType if each is not DataType.JSON)
_TYPES_FOR: Final[dict[str, tuple[DataType, ...]]] = {
    "equal": _ALL_BUT_JSON,
    "order": _ORDERED,
    "in": _ALL_BUT_JSON,
    "like": _TEXT_TYPES,
    "between": _ORDERED,
    "null": tuple(DataType),
}
_KINDS: Final = [
    *("equal", "equal", "equal", "order", "order", "in", "in", "like", "like", "like"),
    *("between", "null", "null"),
]


@cache
def _of_types(entity: str, types: tuple[DataType, ...]) -> list[tuple[tuple[str, ...], DataType]]:
    return [column for column in _COLUMNS[entity] if column[1] in types]


def _condition(rng: Random, entity: str) -> Expr:
    kind = rng.choice(_KINDS)
    names, data_type = rng.choice(_of_types(entity, _TYPES_FOR[kind]))
    subject, negated = ColumnRef(names=names), rng.random() < 0.4
    match kind:
        case "null":
            return NullTest(subject=subject, negated=negated)
        case "in":
            count = rng.randint(1, 4)
            values = tuple(_value(rng, data_type, in_list=True) for _ in range(count))
            return Membership(subject=subject, values=values, negated=negated)
        case "between":
            low, high = _operand(rng, entity, data_type), _operand(rng, entity, data_type)
            return Between(subject=subject, low=low, high=high, negated=negated)
        case "like":
            return _text_match(rng, subject, negated)
    operators = list(Operator) if kind == "order" else [Operator.EQUAL, Operator.UNEQUAL]
    sides: list[Operand] = [subject, _operand(rng, entity, data_type)]
    if rng.random() < 0.2:
        sides.reverse()
    return Comparison(operator=rng.choice(operators), left=sides[0], right=sides[1])


def _operand(rng: Random, entity: str, data_type: DataType) -> Operand:
    if rng.random() < 0.8:
        return _value(rng, data_type)
    family = next((f for f in (_NUMBERS, _TEXT_TYPES) if data_type in f), (data_type,))
    return ColumnRef(names=rng.choice(_of_types(entity, family))[0])


def _value(rng: Random, data_type: DataType, *, in_list: bool = False) -> Operand:
    roll = rng.random()
    if roll < 0.08:
        return Literal(kind=LiteralKind.NULL, text="null")
    if roll < 0.16 and (calls := _functions(data_type, in_list)):
        return Call(function=rng.choice(calls))
    return _literal(rng, data_type)


def _functions(data_type: DataType, in_list: bool) -> list[Function]:
    if data_type in _TEXT_TYPES:
        return [Function.ME, Function.GROUPS] if in_list else [Function.ME]
    return {
        DataType.DATE: [Function.TODAY],
        DataType.DATETIME: [Function.TODAY, Function.NOW],
    }.get(data_type, [])


def _literal(rng: Random, data_type: DataType) -> Literal:
    meant, quoted = value(rng, data_type), rng.random() < 0.2
    if isinstance(meant, bool):
        return _written(LiteralKind.BOOLEAN, str(meant).lower(), quoted)
    if isinstance(meant, int | Decimal):
        sign = "+" if meant >= 0 and rng.random() < 0.2 else ""
        return _written(LiteralKind.NUMBER, sign + format(Decimal(meant), "f"), quoted)
    if isinstance(meant, datetime):
        zone = rng.choice(["Z", "+00:00", ""])
        return _written(LiteralKind.TEXT, meant.replace(tzinfo=None).isoformat() + zone, True)
    return _written(LiteralKind.TEXT, str(meant), True)


def _written(kind: LiteralKind, text: str, quoted: bool) -> Literal:
    return Literal(kind=LiteralKind.TEXT if quoted else kind, text=text)


def _text_match(rng: Random, subject: ColumnRef, negated: bool) -> TextMatch:
    match, near = rng.choice(list(Match)), _literal(rng, DataType.TEXT)
    pattern: Operand = near
    if match in (Match.LIKE, Match.ILIKE):
        text = _pattern(rng, near.text, ignore_case=match is Match.ILIKE)
        pattern = Literal(kind=LiteralKind.TEXT, text=text)
    elif rng.random() < 0.2:
        pattern = Call(function=Function.ME)
    return TextMatch(match=match, subject=subject, pattern=pattern, negated=negated)


def _pattern(rng: Random, text: str, *, ignore_case: bool) -> str:
    """A LIKE pattern near *text*: some characters replaced, all backslashes escaped."""
    parts: list[str] = []
    for character in text.swapcase() if ignore_case else text:
        sign = rng.choice([character, character, "%", "_", "\\" + character])
        parts.append("\\\\" if sign == "\\" else sign)
    return "".join(parts) + rng.choice(["", "", "%"])


def as_json(row: dict[str, Any]) -> str:
    """A row for ``jsonb_populate_record``, whose text forms PostgreSQL reads exactly."""
    return json.dumps(
        {name: None if value is None else value if isinstance(value, bool) else str(value)
         for name, value in row.items()}
    )  # fmt: skip
