"""Patterns of values: which ones a definition may use, and what they say in RE2 and PostgreSQL.

A pattern covers the whole value. RE2 judges values in the program, in linear time and bounded
memory; a CHECK judges them in the database. Both must agree on every text, so a pattern is parsed
into a tree (``pattern_parser``) and written anew for PostgreSQL from it: nothing reaches the
database that was not understood. What the two cannot say alike is refused with a sentence.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdm_gitops.model import charset as sets
from mdm_gitops.model.charset import CharSet
from mdm_gitops.model.pattern_parser import (
    Boundary,
    Chars,
    Choice,
    Edge,
    Part,
    PatternRefused,
    Repeat,
    Sequence,
    can_be_empty,
    parse_pattern,
)

if TYPE_CHECKING:
    from re2 import _Regexp

MAX_LENGTH: Final = 512  # characters
MAX_MEMORY: Final = 8 << 20  # bytes that RE2 may use for one pattern
MAX_WEIGHT: Final = 2_000  # steps of the automaton that PostgreSQL would build
MAX_RENDERED: Final = 20_000  # characters of the pattern in PostgreSQL
POSTGRES_MAX_REPEAT: Final = 255  # PostgreSQL manual, "Regular Expression Quantifiers"

# What RE2 says of a pattern that we understand, and what to do about it.
_SMALLER: Final = "use smaller counts, or + with maxLength"
_RE2_REASONS: Final = {
    "invalid repetition size": f"the counts in the pattern multiply to over 1000; {_SMALLER}",
    "pattern too large - compile failed": f"the pattern takes too much memory; {_SMALLER}",
}


def why_refused(pattern: str) -> str | None:
    """Say in a sentence why *pattern* cannot be a rule, or return None."""
    try:
        to_postgres(pattern)
    except PatternRefused as refused:
        return str(refused)
    return None


def matches(pattern: str, text: str) -> bool:
    """Tell whether *pattern*, which must not be refused, covers the whole of *text*."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1_024)
def to_postgres(pattern: str) -> str:
    """Return the pattern that, under PostgreSQL's ``~``, has the same verdict on every text.

    Raises:
        PatternRefused: see ``why_refused``.
    """
    if len(pattern) > MAX_LENGTH:
        raise PatternRefused(
            f"the pattern has {len(pattern)} characters, at most {MAX_LENGTH} are allowed"
        )
    if any(character == "\x00" or "\ud800" <= character <= "\udfff" for character in pattern):
        raise PatternRefused("the pattern holds a character that PostgreSQL cannot store")
    tree = parse_pattern(pattern)
    _check_weight(tree)
    _check_re2(pattern)
    rendered = f"^(?:{_render(tree)})$"
    if len(rendered) > MAX_RENDERED:
        raise PatternRefused(
            "the pattern names too many characters for the database; use fewer classes such as "
            "\\p{L}, or [^...] with what must not occur"
        )
    return rendered


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> _Regexp:
    import re2

    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False
    options.never_capture = True
    return re2.compile(pattern, options)


def _check_re2(pattern: str) -> None:
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise PatternRefused(_RE2_REASONS.get(reason.partition(":")[0].strip(), reason)) from None


def _check_weight(tree: Part) -> None:
    weight = _weight(tree)
    if weight > MAX_WEIGHT:
        raise PatternRefused(
            f"the counts in the pattern multiply to {weight} steps, at most {MAX_WEIGHT} are "
            f"allowed; {_SMALLER}"
        )


def _weight(part: Part) -> int:
    """Count the steps that a matcher without counters has to lay out."""
    match part:
        case Sequence(items=items) | Choice(items=items):
            return sum(map(_weight, items)) + 1
        case Repeat(item=item, least=least, most=most):
            count = max(least if most is None else most, 1)
            return _weight(item) * count * (count if can_be_empty(item) else 1)
        case _:
            return 1


def _render(part: Part) -> str:
    match part:
        case Chars(charset=charset):
            return _render_set(charset)
        case Boundary(negated=negated):
            return _render_boundary(negated)
        case Sequence(items=items):
            return "".join(
                f"(?:{_render(item)})" if isinstance(item, Choice) else _render(item)
                for item in items
            )
        case Choice(items=items):
            return "|".join(map(_render, items))
        case Repeat():
            return _render_repeat(part)
        case Edge():  # pragma: no cover - the parser leaves none
            raise AssertionError("an edge inside a pattern")


def _render_repeat(repeat: Repeat) -> str:
    item = _render(repeat.item)
    atom = item if isinstance(repeat.item, Chars) else f"(?:{item})"
    return "".join(atom + count for count in _counts(repeat.least, repeat.most))


def _counts(least: int, most: int | None) -> list[str]:
    """Write a count as PostgreSQL can hold it: x{300} is x{255}x{45}."""
    counts: list[str] = []
    while max(least, most or 0) > POSTGRES_MAX_REPEAT:
        low = min(least, POSTGRES_MAX_REPEAT)
        counts.append(_count(low, low if most is None else POSTGRES_MAX_REPEAT))
        least -= low
        most = None if most is None else most - POSTGRES_MAX_REPEAT
    return [*counts, _count(least, most)]


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((least, most))
    if short is not None:
        return short
    if least == most:
        return f"{{{least}}}"
    return f"{{{least},{'' if most is None else most}}}"


def _render_boundary(negated: bool) -> str:
    """PostgreSQL's own ``\\y`` knows other word characters, and which depends on the locale."""
    word = "[0-9A-Z_a-z]"
    into, out = f"(?<!{word})(?={word})", f"(?<={word})(?!{word})"
    outside, inside = f"(?<!{word})(?!{word})", f"(?<={word})(?={word})"
    return f"(?:{outside}|{inside})" if negated else f"(?:{into}|{out})"


def _render_set(charset: CharSet) -> str:
    """Write a set without any class of PostgreSQL's, which depend on the locale."""
    if charset == sets.UNIVERSE:
        return "."
    if len(charset) == 1 and charset[0][0] == charset[0][1]:
        return _character(charset[0][0], ".[](){}*+?|^$\\")
    rest = sets.complement(charset)
    if len(rest) < len(charset):
        return f"[^{_render_ranges(rest)}]"
    return f"[{_render_ranges(charset)}]"


def _render_ranges(charset: CharSet) -> str:
    special = "[]^-\\"
    return "".join(
        _character(low, special)
        + ("-" if high > low + 1 else "")
        + (_character(high, special) if high > low else "")
        for low, high in charset
    )


def _character(code_point: int, special: str) -> str:
    character = chr(code_point)
    if character in special:
        return "\\" + character
    if " " <= character <= "~":
        return character
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else f"\\U{code_point:08x}"
