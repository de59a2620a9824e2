"""Tokens -> syntax tree, by recursive descent; and back to text.

The recursion follows parentheses and NOT, which are counted: ``MAX_DEPTH`` bounds the Python stack
whatever the text holds. Chains of AND and OR are loops.
"""

from __future__ import annotations

import difflib
from typing import Final, NoReturn

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
    NullTest,
    Operand,
    Operator,
    Or,
    TextMatch,
)
from mdm_gitops.filter.lexer import Token, TokenKind, tokenize

MAX_DEPTH: Final = 32  # parentheses and NOT around a condition
MAX_TERMS: Final = 200  # conditions in one filter
MAX_LIST: Final = 1_000  # values in one IN list

_OPERATORS: Final = {operator.value: operator for operator in Operator}
_MATCHES: Final = {match.value: match for match in Match}
_FUNCTIONS: Final = {function.value.upper(): function for function in Function}
_CONSTANTS: Final = {
    "TRUE": LiteralKind.BOOLEAN,
    "FALSE": LiteralKind.BOOLEAN,
    "NULL": LiteralKind.NULL,
}
_KEYWORDS: Final = ("AND", "OR", "NOT", "IN", "BETWEEN", "IS", *_MATCHES, *_CONSTANTS)

_OPERAND: Final = "a [column] or a value"
_VALUE: Final = "a value"
_OPERATOR: Final = "an operator (=, <>, <, LIKE, IN, BETWEEN, IS NULL, ...)"


def parse(text: str) -> Expr:
    """Read a filter.

    Raises:
        FilterError: with the position in *text* and what was expected there.
    """
    parser = _Parser(tokenize(text))
    expr = parser.disjunction(0)
    parser.end()
    return expr


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._terms = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def end(self) -> None:
        if self._token.kind is not TokenKind.END:
            self._refuse("AND, OR or the end of the filter")

    def disjunction(self, depth: int) -> Expr:
        position = self._token.position
        items = [self._conjunction(depth)]
        while self._accept_word("OR"):
            items.append(self._conjunction(depth))
        return items[0] if len(items) == 1 else Or(items=tuple(items), position=position)

    def _conjunction(self, depth: int) -> Expr:
        position = self._token.position
        items = [self._negation(depth)]
        while self._accept_word("AND"):
            items.append(self._negation(depth))
        return items[0] if len(items) == 1 else And(items=tuple(items), position=position)

    def _negation(self, depth: int) -> Expr:
        position = self._token.position
        if depth > MAX_DEPTH:
            raise FilterError(
                f"the filter is nested deeper than {MAX_DEPTH}",
                position=position,
                hint="IN (..) replaces many OR",
            )
        if self._accept_word("NOT"):
            return Not(item=self._negation(depth + 1), position=position)
        if self._accept_sign("("):
            expr = self.disjunction(depth + 1)
            self._expect_sign(")", "AND, OR or )")
            return expr
        return self._condition()

    def _condition(self) -> Expr:
        position = self._token.position
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise FilterError(
                f"the filter has more than {MAX_TERMS} conditions",
                position=position,
                hint="IN (..) replaces many OR",
            )
        subject = self._operand(_OPERAND)
        if self._accept_word("IS"):
            negated = self._accept_word("NOT")
            self._expect_word("NULL")
            return NullTest(subject=subject, negated=negated, position=position)
        negated = self._accept_word("NOT")
        if self._accept_word("IN"):
            return Membership(
                subject=subject, values=self._values(), negated=negated, position=position
            )
        if self._accept_word("BETWEEN"):
            low = self._operand(_VALUE)
            self._expect_word("AND")
            high = self._operand(_VALUE)
            return Between(subject=subject, low=low, high=high, negated=negated, position=position)
        if (match := _MATCHES.get(self._word)) is not None:
            self._next += 1
            pattern = self._operand("a text in quotes")
            return TextMatch(
                match=match, subject=subject, pattern=pattern, negated=negated, position=position
            )
        if negated:
            self._refuse("IN, LIKE, ILIKE, CONTAINS, STARTSWITH, ENDSWITH or BETWEEN")
        return self._comparison(subject)

    def _comparison(self, left: Operand) -> Expr:
        token = self._token
        operator = _OPERATORS.get(token.value) if token.kind is TokenKind.SIGN else None
        if operator is None:
            self._refuse(_OPERATOR, hint=_operator_hint(left))
        self._next += 1
        right = self._operand("a value or a [column]")
        return Comparison(operator=operator, left=left, right=right, position=left.position)

    def _values(self) -> tuple[Operand, ...]:
        if self._word == "GROUPS":
            return (self._operand(_VALUE),)
        self._expect_sign("(", "( or groups()")
        values: list[Operand] = []
        while True:
            if len(values) == MAX_LIST:
                raise FilterError(
                    f"IN has more than {MAX_LIST} values", position=self._token.position
                )
            values.append(self._operand(_VALUE))
            if not self._accept_sign(","):
                break
        self._expect_sign(")", ", or )")
        return tuple(values)

    def _operand(self, expected: str) -> Operand:
        token = self._token
        match token.kind:
            case TokenKind.COLUMN:
                return self._column()
            case TokenKind.TEXT:
                kind, text = LiteralKind.TEXT, token.value
            case TokenKind.NUMBER:
                kind, text = LiteralKind.NUMBER, token.value
            case TokenKind.WORD if token.value in _CONSTANTS:
                kind, text = _CONSTANTS[token.value], token.value.lower()
            case TokenKind.WORD if token.value in _FUNCTIONS:
                return self._call()
            case _:
                self._refuse(expected, hint=_operand_hint(token))
        self._next += 1
        return Literal(kind=kind, text=text, position=token.position)

    def _column(self) -> ColumnRef:
        first = self._token
        names = [self._column_name()]
        while self._accept_sign("."):
            if len(names) == 2:
                self._previous()
                self._refuse(_OPERATOR, hint="a filter follows one reference, not two")
            if self._token.kind is not TokenKind.COLUMN:
                self._refuse("a [column] of the entity that the reference points at")
            names.append(self._column_name())
        return ColumnRef(names=tuple(names), position=first.position)

    def _column_name(self) -> str:
        token = self._token
        if not token.value:
            self._refuse("a column name between [ and ]")
        self._next += 1
        return token.value

    def _call(self) -> Call:
        token = self._token
        self._next += 1
        self._expect_sign("(", f"() after {token.source}")
        self._expect_sign(")", f") because {token.source} takes no values")
        return Call(function=_FUNCTIONS[token.value], position=token.position)

    @property
    def _word(self) -> str:
        return self._token.value if self._token.kind is TokenKind.WORD else ""

    def _accept_word(self, word: str) -> bool:
        if self._word != word:
            return False
        self._next += 1
        return True

    def _accept_sign(self, sign: str) -> bool:
        if self._token.kind is not TokenKind.SIGN or self._token.value != sign:
            return False
        self._next += 1
        return True

    def _expect_word(self, word: str) -> None:
        if not self._accept_word(word):
            self._refuse("NULL or NOT NULL" if word == "NULL" else word)

    def _expect_sign(self, sign: str, expected: str) -> None:
        if not self._accept_sign(sign):
            self._refuse(expected)

    def _previous(self) -> None:
        self._next -= 1

    def _refuse(self, expected: str, *, hint: str = "") -> NoReturn:
        token = self._token
        raise FilterError(
            f"expected {expected}, found {token}",
            position=token.position,
            expected=expected,
            hint=hint or _keyword_hint(token),
        )


def _operand_hint(token: Token) -> str:
    if token.kind is not TokenKind.WORD or token.value in _KEYWORDS:
        return ""
    near = difflib.get_close_matches(token.value, _FUNCTIONS, n=1)
    if near:
        return f"did you mean {near[0].lower()}()?"
    return f"a column is written [{token.source}], a text '{token.source}'"


def _operator_hint(left: Operand) -> str:
    if isinstance(left, ColumnRef):
        return ""
    return "a condition compares a [column] with a value"


def _keyword_hint(token: Token) -> str:
    if token.kind is TokenKind.SIGN and token.value == "=":
        return "equal is written with one ="
    if token.kind is not TokenKind.WORD or token.value in _KEYWORDS:
        return ""
    near = difflib.get_close_matches(token.value, _KEYWORDS, n=1)
    return f"did you mean {near[0]}?" if near else ""


def unparse(expr: Expr) -> str:
    """Write *expr* in canonical form: ``parse(unparse(expr)) == expr`` for all that was parsed."""
    match expr:
        case And(items=items):
            return " AND ".join(_enclosed(item, And | Or) for item in items)
        case Or(items=items):
            return " OR ".join(_enclosed(item, Or) for item in items)
        case Not(item=item):
            return f"NOT {_enclosed(item, And | Or)}"
        case Comparison():
            return f"{_operand(expr.left)} {expr.operator.value} {_operand(expr.right)}"
        case NullTest():
            return f"{_operand(expr.subject)} IS {_not(expr.negated)}NULL"
        case Membership():
            values = ", ".join(map(_operand, expr.values))
            return f"{_operand(expr.subject)} {_not(expr.negated)}IN ({values})"
        case Between():
            low, high = _operand(expr.low), _operand(expr.high)
            return f"{_operand(expr.subject)} {_not(expr.negated)}BETWEEN {low} AND {high}"
        case _:
            match, pattern = expr.match.value, _operand(expr.pattern)
            return f"{_operand(expr.subject)} {_not(expr.negated)}{match} {pattern}"


def _enclosed(expr: Expr, kinds: object) -> str:
    text = unparse(expr)
    return f"({text})" if isinstance(expr, kinds) else text  # type: ignore[arg-type]


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _operand(operand: Operand) -> str:
    match operand:
        case ColumnRef(names=names):
            return ".".join(f"[{name.replace(']', ']]')}]" for name in names)
        case Call(function=function):
            return f"{function.value}()"
        case Literal(kind=LiteralKind.TEXT, text=text):
            return "'" + text.replace("'", "''") + "'"
        case _:
            return operand.text
