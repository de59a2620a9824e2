"""What a filter means, told a second time: over rows as Python values, in three-valued logic.

Shares the syntax tree and ``coerce`` with the product and nothing else: no typed tree, no pushing
down of NOT, no SQL. ``True``, ``False`` and ``None`` (unknown) are SQL's truth values. Methods are
small so that a test can break one and see that the comparison notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from mdm_gitops.filter import Expr, FilterContext
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
from mdm_gitops.model.values import DataType, coerce

Row = Mapping[str, Any]
Truth = bool | None


@dataclass(kw_only=True)
class Follow:
    """A reference: *column* of a row holds the *key* value of a row of the entity *target*."""

    column: str
    target: str
    key: str


@dataclass(kw_only=True)
class World:
    """All rows there are, and the types of all columns, by entity."""

    types: Mapping[str, Mapping[str, DataType]]
    rows: Mapping[str, list[Row]]
    references: Mapping[tuple[str, str], Follow]
    context: FilterContext
    lower: Callable[[str], str] = str.lower
    visible: Mapping[str, Expr] = field(default_factory=dict)


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world

    def passing(self, expr: Expr, entity: str) -> set[Any]:
        rows = self.world.rows[entity]
        return {row["_sys_id"] for row in rows if self.truth(expr, entity, row) is True}

    def truth(self, expr: Expr, entity: str, row: Row) -> Truth:
        match expr:
            case And(items=items):
                return self.all_of([self.truth(item, entity, row) for item in items])
            case Or(items=items):
                return self.any_of([self.truth(item, entity, row) for item in items])
            case Not(item=item):
                return self.negation(self.truth(item, entity, row))
            case NullTest(subject=subject, negated=negated):
                return (self.value(subject, None, entity, row) is None) is not negated
            case _:
                return self.condition(expr, entity, row)

    def condition(
        self, expr: Comparison | Between | Membership | TextMatch, entity: str, row: Row
    ) -> Truth:
        if isinstance(expr, Comparison):
            data_type = self.type_of(expr.left, entity) or self.type_of(expr.right, entity)
            left = self.value(expr.left, data_type, entity, row)
            return self.compare(left, expr.operator, self.value(expr.right, data_type, entity, row))
        data_type = self.type_of(expr.subject, entity)
        subject = self.value(expr.subject, data_type, entity, row)
        match expr:
            case Between():
                low = self.value(expr.low, data_type, entity, row)
                high = self.value(expr.high, data_type, entity, row)
                found = self.all_of(
                    [
                        self.compare(subject, Operator.GREATER_OR_EQUAL, low),
                        self.compare(subject, Operator.LESS_OR_EQUAL, high),
                    ]
                )
            case Membership():
                values = self.members(expr.values, data_type, entity, row)
                found = self.any_of(
                    [self.compare(subject, Operator.EQUAL, value) for value in values]
                )
            case TextMatch():
                pattern = self.value(expr.pattern, data_type, entity, row)
                found = self.resembles(subject, expr.match, pattern)
        return self.negation(found) if expr.negated else found

    def all_of(self, truths: Iterable[Truth]) -> Truth:
        seen = set(truths)
        return False if False in seen else None if None in seen else True

    def any_of(self, truths: Iterable[Truth]) -> Truth:
        seen = set(truths)
        return True if True in seen else None if None in seen else False

    def negation(self, truth: Truth) -> Truth:
        return None if truth is None else not truth

    def compare(self, left: Any, operator: Operator, right: Any) -> Truth:
        if left is None or right is None:
            return None
        return {
            Operator.EQUAL: left == right,
            Operator.UNEQUAL: left != right,
            Operator.LESS: operator is Operator.LESS and left < right,
            Operator.LESS_OR_EQUAL: operator is Operator.LESS_OR_EQUAL and left <= right,
            Operator.GREATER: operator is Operator.GREATER and left > right,
            Operator.GREATER_OR_EQUAL: operator is Operator.GREATER_OR_EQUAL and left >= right,
        }[operator]

    def resembles(self, text: str | None, match: Match, pattern: str | None) -> Truth:
        if text is None or pattern is None:
            return None
        match match:
            case Match.LIKE:
                return self.like(text, pattern)
            case Match.ILIKE:
                return self.like(self.world.lower(text), self.world.lower(pattern))
            case Match.CONTAINS:
                return pattern in text
            case Match.STARTSWITH:
                return text.startswith(pattern)
            case Match.ENDSWITH:
                return text.endswith(pattern)

    def like(self, text: str, pattern: str) -> bool:
        """Decide by the set of places in *text* that the pattern so far can have reached."""
        places, rest = {0}, iter(pattern)
        for sign in rest:
            if sign == "%":
                places = set(range(min(places), len(text) + 1)) if places else places
            elif sign == "_":
                places = {place + 1 for place in places if place < len(text)}
            else:
                wanted = next(rest) if sign == "\\" else sign
                places = {p + 1 for p in places if text[p : p + 1] == wanted}
        return len(text) in places

    def type_of(self, operand: Operand, entity: str) -> DataType | None:
        if not isinstance(operand, ColumnRef):
            return None
        if len(operand.names) == 2:
            entity = self.world.references[entity, operand.names[0].lower()].target
        return self.world.types[entity][operand.names[-1].lower()]

    def value(self, operand: Operand, data_type: DataType | None, entity: str, row: Row) -> Any:
        match operand:
            case ColumnRef(names=(name,)):
                return row[name.lower()]
            case ColumnRef(names=(reference, name)):
                target = self.follow(entity, reference.lower(), row)
                return None if target is None else target[name.lower()]
            case Literal(kind=kind, text=text):
                assert data_type is not None
                raw: Any = {
                    LiteralKind.NULL: lambda: None,
                    LiteralKind.TEXT: lambda: text,
                    LiteralKind.NUMBER: lambda: Decimal(text),
                    LiteralKind.BOOLEAN: lambda: text == "true",
                }[kind]()
                return coerce(data_type, raw)
            case Call(function=Function.TODAY):
                today = self.world.context.today
                moment = datetime.combine(today, time(), UTC)
                return moment if data_type is DataType.DATETIME else today
            case Call(function=function):
                return {"now": self.world.context.now, "me": self.world.context.me}[function]
        raise AssertionError(operand)

    def members(
        self, values: Iterable[Operand], data_type: DataType | None, entity: str, row: Row
    ) -> list[Any]:
        members: list[Any] = []
        for value in values:
            if isinstance(value, Call) and value.function is Function.GROUPS:
                members.extend(self.world.context.groups)
            else:
                members.append(self.value(value, data_type, entity, row))
        return members

    def follow(self, entity: str, reference: str, row: Row) -> Row | None:
        by = self.world.references[entity, reference]
        found = [r for r in self.world.rows[by.target] if r[by.key] == row[by.column]]
        target = found[0] if found and row[by.column] is not None else None
        condition = self.world.visible.get(by.target)
        if target is None or condition is None:
            return target
        unrestricted = type(self)(
            World(**{**vars(self.world), "visible": {}})  # a stored filter sees everything
        )
        return target if unrestricted.truth(condition, by.target, target) is True else None
