"""Text of a filter -> tokens with positions. One pass, one pattern, no recursion."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mdm_gitops.errors import FilterError

MAX_LENGTH: Final = 8_192  # characters


class TokenKind(StrEnum):
    COLUMN = "column"
    TEXT = "text"
    NUMBER = "number"
    WORD = "word"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """*value* is the meaning (escapes resolved, words in upper case), *source* the spelling."""

    kind: TokenKind
    value: str
    source: str
    position: int

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end of the filter"
        return shorten(self.source)


_TOKEN: Final = re.compile(
    r"""
      (?P<space>  [ \t\r\n]+ )
    | (?P<column> \[ [^\]]* (?: \]\] [^\]]* )* \] (?! \] ) )
    | (?P<text>   ' [^']* (?: '' [^']* )* ' (?! ' ) )
    | (?P<number> [+-]? (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE][+-]?[0-9]{1,3} )?
                  (?! [0-9A-Za-z_.] ) )
    | (?P<word>   [A-Za-z_][A-Za-z_0-9]* )
    | (?P<sign>   <= | >= | <> | != | [=<>(),.] )
    """,
    re.VERBOSE,
)

_HINTS: Final = {
    '"': "text stands in single quotes: 'text'",
    "“": "text stands in single quotes: 'text'",
    "‘": "text stands in single quotes: 'text'",
    "’": "text stands in single quotes: 'text'",
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT, or <> for unequal",
    "*": "in LIKE, % stands for any characters",
    ";": "a filter is one condition, without an end mark",
}


def shorten(source: str) -> str:
    """Quote a piece of a filter for a message; what cannot be printed is escaped."""
    return repr(source if len(source) <= 40 else source[:37] + "...")


def tokenize(text: str) -> list[Token]:
    """Split *text*; the last token is always END.

    Raises:
        FilterError: *text* is too long, or holds something that is no token.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(
            f"the filter has {len(text)} characters, at most {MAX_LENGTH} are allowed",
            position=MAX_LENGTH,
        )
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _no_token(text, position)
        kind = found.lastgroup or ""
        if kind != "space":
            tokens.append(_token(TokenKind(kind), found.group(), position))
        position = found.end()
    tokens.append(Token(kind=TokenKind.END, value="", source="", position=position))
    return tokens


def _token(kind: TokenKind, source: str, position: int) -> Token:
    match kind:
        case TokenKind.COLUMN:
            value = source[1:-1].replace("]]", "]")
        case TokenKind.TEXT:
            value = source[1:-1].replace("''", "'")
        case TokenKind.WORD:
            value = source.upper()
        case _:
            value = "<>" if source == "!=" else source
    return Token(kind=kind, value=value, source=source, position=position)


def _no_token(text: str, position: int) -> FilterError:
    character = text[position]
    if character == "[":
        return FilterError("a column name is not closed", position=position, expected="]")
    if character == "'":
        return FilterError("a text is not closed", position=position, expected="'")
    if character in "+-.0123456789":
        run = re.compile(r"[-+.\w]+").match(text, position)
        source = run.group() if run else character
        return FilterError(
            f"{shorten(source)} is not a number", position=position, expected="a number"
        )
    return FilterError(
        f"{shorten(character)} cannot stand here", position=position, hint=_HINTS.get(character, "")
    )
