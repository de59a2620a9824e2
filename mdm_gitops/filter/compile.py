"""Typed tree -> a sqlglot expression with bound parameters, printed for psycopg.

Only operators that PostgreSQL defines for every stored value are used, and no column is cast: a
query cannot fail on a row that the caller may not see. The shape of the SQL depends on the filter
alone, so it is kept; the context (who, when) only fills in values.

Index use. Equality and IN compare with the column's own collation, as its index does. ``<`` and
``>`` on text compare by code point (``COLLATE "C"``) on every server, and use an index only if it
has that collation. A followed reference is an EXISTS on the target's unique key, which the planner
can turn into a join.

One table, one join. PostgreSQL 18.4 loses a condition when it merges joins of a table with itself
(``enable_self_join_elimination``) and returns rows that do not pass. So only the first EXISTS on a
table may become a join; ``OFFSET 0`` keeps the planner from it for the others, and for references
of an entity to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp

from mdm_gitops.filter.ast import FilterContext, Function, Operator, Predicate
from mdm_gitops.filter.typed import (
    All,
    AnyOf,
    Compare,
    Condition,
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
from mdm_gitops.model.values import DataType

_DIALECT: Final = "postgres"
_CACHED_SHAPES: Final = 256

_SQL_TYPE: Final = {
    DataType.STRING: "text",
    DataType.TEXT: "text",
    DataType.INT: "int",
    DataType.LONG: "bigint",
    DataType.DECIMAL: "decimal",
    DataType.BOOL: "boolean",
    DataType.DATE: "date",
    DataType.DATETIME: "timestamptz",
    DataType.GUID: "uuid",
}
_COMPARISON: Final = {
    Operator.EQUAL: exp.EQ,
    Operator.UNEQUAL: exp.NEQ,
    Operator.LESS: exp.LT,
    Operator.LESS_OR_EQUAL: exp.LTE,
    Operator.GREATER: exp.GT,
    Operator.GREATER_OR_EQUAL: exp.GTE,
}
_EQUALITIES: Final = (Operator.EQUAL, Operator.UNEQUAL)

Bind = Callable[[FilterContext], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    sql: str
    binds: tuple[tuple[str, Bind], ...]


def compile_predicate(
    typed: TypedFilter,
    *,
    context: FilterContext,
    schema: str,
    alias: str,
    parameter_prefix: str,
    relation_prefix: str = "",
) -> Predicate:
    shape = _shape(typed, schema, alias, parameter_prefix, relation_prefix)
    return Predicate(sql=shape.sql, parameters={name: bind(context) for name, bind in shape.binds})


@lru_cache(maxsize=_CACHED_SHAPES)
def _shape(
    typed: TypedFilter, schema: str, alias: str, prefix: str, relation_prefix: str
) -> _Shape:
    compiler = _Compiler(entity=typed.entity, schema=schema, prefix=prefix)
    tree = compiler.expression(typed.root, _Scope(alias=alias, relation_prefix=relation_prefix))
    return _Shape(sql=tree.sql(dialect=_DIALECT), binds=tuple(compiler.binds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Under which alias the rows of the entity, and of the references followed here, are known.

    With a *relation_prefix* references lead into the statement's own relations.
    """

    alias: str
    relation_prefix: str = ""
    followed: dict[Via, str] = field(default_factory=dict)


class _Compiler:
    def __init__(self, *, entity: str, schema: str, prefix: str) -> None:
        self._joined_tables = {entity}
        self._schema = schema
        self._prefix = prefix
        self._aliases = 0
        self.binds: list[tuple[str, Bind]] = []

    def expression(self, expr: TypedExpr, scope: _Scope) -> exp.Expr:
        match expr:
            case All(items=items):
                return exp.and_(*self._joined(items, All, scope), copy=False)
            case Some(items=items):
                return exp.or_(*self._joined(items, Some, scope), copy=False)
            case _:
                return self._followed(expr, scope)

    def _joined(
        self, items: Iterable[TypedExpr], kind: type[All | Some], scope: _Scope
    ) -> list[exp.Expr]:
        """Conditions on one referenced row share one EXISTS: its key is unique."""
        joined: list[exp.Expr] = []
        shared: dict[Via, list[TypedExpr]] = {}
        for item in items:
            via = _sole_reference(item, scope)
            if via is None:
                joined.append(self.expression(item, scope))
            else:
                shared.setdefault(via, []).append(item)
        for via, group in shared.items():
            whole = group[0] if len(group) == 1 else kind(items=tuple(group))
            joined.append(self._exists(whole, via, scope))
        return joined

    def _followed(self, expr: Condition, scope: _Scope) -> exp.Expr:
        vias = _unfollowed(expr, scope)
        if vias:
            return self._exists(expr, vias[0], scope)
        if isinstance(expr, IsNull) and not expr.negated and expr.column.via:
            present = IsNull(column=expr.column, negated=True)
            return exp.Not(this=self._exists(present, expr.column.via, scope))
        return self._condition(expr, scope)

    def _exists(self, expr: TypedExpr, via: Via, scope: _Scope) -> exp.Expr:
        alias = f"{self._prefix}_r{self._aliases}"
        self._aliases += 1
        fenced = via.target in self._joined_tables
        self._joined_tables.add(via.target)
        inner = replace(scope, followed={**scope.followed, via: alias})
        link = exp.EQ(this=_column(alias, via.key), expression=_column(scope.alias, via.column))
        parts: list[exp.Expr] = [link, self.expression(expr, inner)]
        if via.visible is not None:
            parts.append(self.expression(via.visible, _Scope(alias=alias)))
        query = (
            exp.select("1")
            .from_(self._relation(via.target, alias, scope))
            .where(exp.and_(*parts, copy=False), copy=False)
        )
        return exp.Exists(this=query.offset(0, copy=False) if fenced else query)

    def _relation(self, target: str, alias: str, scope: _Scope) -> exp.Table:
        if scope.relation_prefix:
            return exp.table_(_name(f"{scope.relation_prefix}{target}"), alias=_name(alias))
        return exp.table_(_name(target), db=_name(self._schema), alias=_name(alias))

    def _condition(self, expr: Condition, scope: _Scope) -> exp.Expr:
        match expr:
            case Compare():
                return self._compare(expr, scope)
            case Resemble():
                return self._resemble(expr, scope)
            case AnyOf():
                return self._any_of(expr, scope)
            case _:
                test = exp.Is(this=_scoped(expr.column, scope), expression=exp.Null())
                return exp.Not(this=test) if expr.negated else test

    def _compare(self, expr: Compare, scope: _Scope) -> exp.Expr:
        left: exp.Expr = _scoped(expr.left, scope)
        right = (
            _scoped(expr.right, scope)
            if isinstance(expr.right, TypedColumn)
            else self._parameter(expr.left.data_type, _bind_value(expr.right))
        )
        if expr.left.data_type.is_text and expr.operator not in _EQUALITIES:
            left = exp.Collate(this=left, expression=_name("C"))
        return _COMPARISON[expr.operator](this=left, expression=right)

    def _resemble(self, expr: Resemble, scope: _Scope) -> exp.Expr:
        value, likeness = _bind_value(expr.pattern), expr.likeness
        pattern = self._parameter(DataType.TEXT, lambda context: _pattern(value(context), likeness))
        kind = exp.ILike if expr.ignore_case else exp.Like
        test = kind(this=_scoped(expr.column, scope), expression=pattern)
        return exp.Not(this=test) if expr.negated else test

    def _any_of(self, expr: AnyOf, scope: _Scope) -> exp.Expr:
        array = self._parameter(expr.column.data_type, _bind_list(expr.values), is_list=True)
        # sqlglot prints ANY and ALL without parentheses of their own.
        if expr.negated:
            return exp.NEQ(
                this=_scoped(expr.column, scope), expression=exp.All(this=exp.Paren(this=array))
            )
        return exp.EQ(
            this=_scoped(expr.column, scope), expression=exp.Any(this=exp.Paren(this=array))
        )

    def _parameter(self, data_type: DataType, bind: Bind, *, is_list: bool = False) -> exp.Cast:
        name = f"{self._prefix}{len(self.binds)}"
        self.binds.append((name, bind))
        sql_type = _SQL_TYPE[data_type] + ("[]" if is_list else "")
        return exp.Cast(
            this=exp.Placeholder(this=name), to=exp.DataType.build(sql_type, dialect=_DIALECT)
        )


def _sole_reference(expr: TypedExpr, scope: _Scope) -> Via | None:
    """Return the one reference that all of *expr* needs, if it is false without the row there."""
    match expr:
        case All(items=items) | Some(items=items):
            found = {_sole_reference(item, scope) for item in items}
        case _:
            found = set(_unfollowed(expr, scope))
    return found.pop() if len(found) == 1 else None


def _unfollowed(expr: Condition, scope: _Scope) -> list[Via]:
    """Return the references still to follow for *expr*, which is not true without their rows."""
    columns: list[TypedColumn]
    match expr:
        case Compare(left=left, right=TypedColumn() as right):
            columns = [left, right]
        case Compare(left=left):
            columns = [left]
        case IsNull(negated=False):  # true without the row
            columns = []
        case _:
            columns = [expr.column]
    found = dict.fromkeys(column.via for column in columns if column.via is not None)
    return [via for via in found if via not in scope.followed]


def _scoped(column: TypedColumn, scope: _Scope) -> exp.Column:
    alias = scope.alias if column.via is None else scope.followed[column.via]
    return _column(alias, column.name)


def _column(alias: str, name: str) -> exp.Column:
    return exp.Column(this=_name(name), table=_name(alias))


def _name(name: str) -> exp.Identifier:
    """Quote a name. psycopg reads ``%`` everywhere in a statement, so here it is doubled."""
    return exp.Identifier(this=name.replace("%", "%%"), quoted=True)


def _bind_value(value: TypedValue) -> Bind:
    match value:
        case Value(value=constant):
            return lambda context: constant
        case ContextValue(function=Function.ME):
            return lambda context: context.me
        case ContextValue(function=Function.NOW):
            return lambda context: context.now
        case ContextValue(data_type=DataType.DATETIME):
            return lambda context: datetime.combine(context.today, time.min, UTC)
        case _:
            return lambda context: context.today


def _bind_list(values: Sequence[TypedValue]) -> Bind:
    """A list may have a thousand values and is bound for each request: one of constants is made once."""
    constant = [value.value for value in values if isinstance(value, Value)]
    if len(constant) == len(values):
        return lambda context: constant
    return lambda context: _list_in(context, values)


def _list_in(context: FilterContext, values: Iterable[TypedValue]) -> list[Any]:
    result: list[Any] = []
    for value in values:
        if isinstance(value, ContextValue) and value.function is Function.GROUPS:
            result.extend(context.groups)
        else:
            result.append(_bind_value(value)(context))
    return result


def _pattern(text: str | None, likeness: Likeness) -> str | None:
    if text is None or likeness is Likeness.PATTERN:
        return text
    literal = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return {
        Likeness.PART: f"%{literal}%",
        Likeness.HEAD: f"{literal}%",
        Likeness.TAIL: f"%{literal}",
    }[likeness]
