"""Syntax tree + entity -> typed tree: names resolved, literals coerced, operators checked.

NOT is pushed down to the conditions on the way (see ``typed`` for why).
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from mdm_gitops.errors import FilterError
from mdm_gitops.filter.ast import (
    And,
    Between,
    Call,
    ColumnRef,
    Comparison,
    Expr,
    Function,
    Literal,
    LiteralKind,
    Match,
    Membership,
    Not,
    Operand,
    Operator,
    Or,
    TextMatch,
)
from mdm_gitops.filter.lexer import shorten
from mdm_gitops.filter.typed import (
    SYSTEM_COLUMNS,
    All,
    AnyOf,
    Compare,
    ContextValue,
    IsNull,
    Likeness,
    Resemble,
    Some,
    TypedColumn,
    TypedExpr,
    TypedFilter,
    TypedValue,
    Value,
    Via,
)
from mdm_gitops.model.entity import Column, Entity
from mdm_gitops.model.names import fold
from mdm_gitops.model.repository import Definitions
from mdm_gitops.model.values import DataType, NotOfType, coerce

_OPPOSITE: Final = {
    Operator.EQUAL: Operator.UNEQUAL,
    Operator.UNEQUAL: Operator.EQUAL,
    Operator.LESS: Operator.GREATER_OR_EQUAL,
    Operator.LESS_OR_EQUAL: Operator.GREATER,
    Operator.GREATER: Operator.LESS_OR_EQUAL,
    Operator.GREATER_OR_EQUAL: Operator.LESS,
}
_MIRRORED: Final = {
    Operator.EQUAL: Operator.EQUAL,
    Operator.UNEQUAL: Operator.UNEQUAL,
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
_EQUALITIES: Final = (Operator.EQUAL, Operator.UNEQUAL)
_LIKENESS: Final = {
    Match.LIKE: Likeness.PATTERN,
    Match.ILIKE: Likeness.PATTERN,
    Match.CONTAINS: Likeness.PART,
    Match.STARTSWITH: Likeness.HEAD,
    Match.ENDSWITH: Likeness.TAIL,
}
# Which function gives a value for which types of column.
_FUNCTION_TYPES: Final = {
    Function.TODAY: (DataType.DATE, DataType.DATETIME),
    Function.NOW: (DataType.DATETIME,),
    Function.ME: (DataType.STRING, DataType.TEXT),
    Function.GROUPS: (DataType.STRING, DataType.TEXT),
}


def type_check(expr: Expr, entity: Entity, definitions: Definitions) -> TypedFilter:
    """Give *expr* its meaning on the rows of *entity*.

    Raises:
        FilterError: a column does not exist, a value is not of the column's type, or an operator
            does not fit it; with the position in the text that *expr* was parsed from.
    """
    checker = _Checker(entity, definitions)
    return TypedFilter(entity=entity.folded, root=checker.expression(expr, negated=False))


class _Checker:
    def __init__(self, entity: Entity, definitions: Definitions) -> None:
        self._entity = entity
        self._definitions = definitions

    def expression(self, expr: Expr, *, negated: bool) -> TypedExpr:
        match expr:
            case Not(item=item):
                return self.expression(item, negated=not negated)
            case And(items=items) | Or(items=items):
                typed = tuple(self.expression(item, negated=negated) for item in items)
                return All(items=typed) if isinstance(expr, And) != negated else Some(items=typed)
            case Comparison():
                return self._comparison(expr, negated)
            case Between():
                return self._between(expr, negated != expr.negated)
            case Membership():
                return self._membership(expr, negated != expr.negated)
            case TextMatch():
                return self._text_match(expr, negated != expr.negated)
            case _:
                column = self._subject(expr.subject)
                return IsNull(column=column, negated=negated != expr.negated)

    def _comparison(self, expr: Comparison, negated: bool) -> Compare:
        left, operator, right = expr.left, expr.operator, expr.right
        if not isinstance(left, ColumnRef) and isinstance(right, ColumnRef):
            left, operator, right = right, _MIRRORED[operator], left
        return self._compare(left, operator, right, negated)

    def _compare(self, left: Operand, operator: Operator, right: Operand, negated: bool) -> Compare:
        column = self._subject(left)
        self._refuse_json(column, left)
        if operator not in _EQUALITIES:
            _require_order(column, left, operator.value)
        operand = self._operand(right, column)
        return Compare(
            operator=_OPPOSITE[operator] if negated else operator, left=column, right=operand
        )

    def _between(self, expr: Between, negated: bool) -> TypedExpr:
        low = self._compare(expr.subject, Operator.GREATER_OR_EQUAL, expr.low, negated)
        high = self._compare(expr.subject, Operator.LESS_OR_EQUAL, expr.high, negated)
        return Some(items=(low, high)) if negated else All(items=(low, high))

    def _membership(self, expr: Membership, negated: bool) -> AnyOf:
        column = self._subject(expr.subject)
        self._refuse_json(column, expr.subject)
        values = tuple(_typed_value(value, column, in_list=True) for value in expr.values)
        return AnyOf(column=column, values=values, negated=negated)

    def _text_match(self, expr: TextMatch, negated: bool) -> Resemble:
        column = self._subject(expr.subject)
        if not column.data_type.is_text:
            raise FilterError(
                f"{expr.match.value} compares text, and {_shown(expr.subject)} "
                f"is {_an(column.data_type)}",
                position=expr.subject.position,
                expected="a text column",
            )
        pattern = _typed_value(expr.pattern, column)
        likeness = _LIKENESS[expr.match]
        if likeness is Likeness.PATTERN:
            _check_pattern(expr.pattern, pattern)
        ignore_case = expr.match is Match.ILIKE
        return Resemble(
            likeness=likeness,
            ignore_case=ignore_case,
            negated=negated,
            column=column,
            pattern=pattern,
        )

    def _subject(self, operand: Operand) -> TypedColumn:
        if isinstance(operand, ColumnRef):
            return self._column(operand)
        raise FilterError(
            f"{_shown(operand)} is compared with a value, one side must be a column",
            position=operand.position,
            expected="a [column]",
        )

    def _operand(self, operand: Operand, column: TypedColumn) -> TypedColumn | TypedValue:
        if not isinstance(operand, ColumnRef):
            return _typed_value(operand, column)
        other = self._column(operand)
        if _family(other.data_type) == _family(column.data_type):
            return other
        raise FilterError(
            f"{_shown(operand)} is {_an(other.data_type)} and cannot be compared "
            f"with {_an(column.data_type)}",
            position=operand.position,
            expected=f"a column or value of type {column.data_type.value}",
        )

    def _column(self, ref: ColumnRef) -> TypedColumn:
        if len(ref.names) == 1:
            return _resolve(self._entity, ref.names[0], ref.position)
        via, target = self._reference(ref)
        return replace(_resolve(target, ref.names[1], ref.position), via=via)

    def _reference(self, ref: ColumnRef) -> tuple[Via, Entity]:
        name = ref.names[0]
        source = _resolve(self._entity, name, ref.position)
        column = self._entity.column(name)
        if column is None or column.reference is None:
            raise FilterError(
                f"[{name}] is not a reference, so nothing can follow it",
                position=ref.position,
                hint=_near_references(self._entity),
            )
        target, key = self._target(column, ref.position)
        return Via(column=source.name, target=target.folded, key=key), target

    def _target(self, column: Column, position: int) -> tuple[Entity, str]:
        assert column.reference is not None
        target = self._definitions.entity(column.reference.entity)
        keys = target.key_columns if target else ()
        key = column.reference.column or (keys[0] if len(keys) == 1 else "")
        if target is None or target.column(key) is None:
            raise FilterError(
                f"[{column.name}] refers to {column.reference.entity!r}, "
                "where no such row can be found",
                position=position,
                hint="the reference itself is wrong",
            )
        return target, fold(key)

    def _refuse_json(self, column: TypedColumn, operand: Operand) -> None:
        if column.data_type is DataType.JSON:
            raise FilterError(
                f"{_shown(operand)} is json and can only be tested with IS NULL",
                position=operand.position,
                expected="IS NULL or IS NOT NULL",
            )


def _resolve(entity: Entity, name: str, position: int) -> TypedColumn:
    folded = fold(name)
    data_type = SYSTEM_COLUMNS.get(folded)
    if data_type is None:
        column = entity.column(name)
        if column is None:
            raise _unknown_column(entity, name, position)
        data_type = column.data_type
    return TypedColumn(entity=entity.folded, name=folded, data_type=data_type)


def _unknown_column(entity: Entity, name: str, position: int) -> FilterError:
    spelled = {column.folded: column.name for column in entity.columns}
    spelled |= {system: system for system in SYSTEM_COLUMNS}
    near = difflib.get_close_matches(fold(name)[:64], spelled, n=1)
    return FilterError(
        f"entity {entity.name!r} has no column {shorten(name)}",
        position=position,
        expected=f"a column of {entity.name}",
        hint=f"did you mean [{spelled[near[0]]}]?" if near else "",
    )


def _near_references(entity: Entity) -> str:
    names = [f"[{column.name}]" for column in entity.columns if column.reference]
    return f"references of {entity.name}: {', '.join(names[:5])}" if names else ""


def _typed_value(operand: Operand, column: TypedColumn, *, in_list: bool = False) -> TypedValue:
    match operand:
        case Literal():
            return Value(data_type=column.data_type, value=_coerced(operand, column.data_type))
        case Call(function=function):
            return _context_value(operand, function, column.data_type, in_list)
        case _:
            raise FilterError(
                f"{_shown(operand)} is a column, and here stands a value",
                position=operand.position,
                expected="a value",
            )


def _coerced(literal: Literal, data_type: DataType) -> Any:
    raw: Any = literal.text
    match literal.kind:
        case LiteralKind.NULL:
            raw = None
        case LiteralKind.BOOLEAN:
            raw = literal.text == "true"
        case LiteralKind.NUMBER:
            raw = Decimal(literal.text)
    try:
        return coerce(data_type, raw)
    except NotOfType as error:
        shown = shorten(literal.text) if literal.kind is LiteralKind.TEXT else literal.text[:40]
        raise FilterError(
            f"{shown} {error}",
            position=literal.position,
            expected=f"a value of type {data_type.value}",
        ) from None


def _context_value(
    call: Call, function: Function, data_type: DataType, in_list: bool
) -> ContextValue:
    if data_type not in _FUNCTION_TYPES[function]:
        raise FilterError(
            f"{function.value}() gives no value of type {data_type.value}",
            position=call.position,
            expected=f"a value of type {data_type.value}",
        )
    if function is Function.GROUPS and not in_list:
        raise FilterError(
            "groups() is a list", position=call.position, expected="IN before groups()"
        )
    return ContextValue(data_type=data_type, function=function)


def _require_order(column: TypedColumn, operand: Operand, operator: str) -> None:
    if column.data_type.is_ordered or column.data_type.is_text:
        return
    raise FilterError(
        f"{_shown(operand)} is {_an(column.data_type)}, which has no order for {operator}",
        position=operand.position,
        expected="=, <>, IN or IS NULL",
    )


def _check_pattern(operand: Operand, pattern: TypedValue) -> None:
    """A name may hold wildcards by chance, and PostgreSQL refuses a pattern that ends in ``\\``."""
    if isinstance(pattern, ContextValue):
        raise FilterError(
            f"{pattern.function.value}() is not a pattern",
            position=operand.position,
            expected="a text in quotes",
            hint="CONTAINS, STARTSWITH and ENDSWITH take it as it is",
        )
    text = pattern.value or ""
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise FilterError(
            "the pattern ends with \\, which escapes the next character",
            position=operand.position,
            expected="\\\\ for a backslash",
        )


def _family(data_type: DataType) -> str:
    if data_type.is_number:
        return "number"
    return "text" if data_type.is_text else data_type.value


def _an(data_type: DataType) -> str:
    return f"an {data_type.value}" if data_type is DataType.INT else f"a {data_type.value}"


def _shown(operand: Operand) -> str:
    match operand:
        case ColumnRef(names=names):
            return ".".join(f"[{name}]" for name in names)
        case Call(function=function):
            return f"{function.value}()"
        case _:
            text = operand.text
            return shorten(text) if operand.kind is LiteralKind.TEXT else text[:40]
