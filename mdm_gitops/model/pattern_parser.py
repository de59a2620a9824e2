"""A value pattern -> a tree that says which texts it covers, and nothing else.

The accepted language is the part of RE2's that can be said in PostgreSQL's dialect with exactly
the same verdict. Greed, captures and names decide nothing about a full match, so the tree has
none; case and classes are resolved into sets of characters, so it has no flags and no locale.
Whatever is not understood here is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from mdm_gitops.model import charset as sets
from mdm_gitops.model.charset import CharSet

MAX_DEPTH: Final = 32  # groups inside groups
MAX_REPEAT: Final = 1_000  # RE2's own limit
MAX_BOUNDARIES: Final = 8  # PostgreSQL's memory grows with their square


class PatternRefused(ValueError):
    """The pattern is not accepted; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    charset: CharSet


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of the value."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between a word character of ASCII and anything else, or (negated) no such place."""

    negated: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Part
    least: int
    most: int | None  # None: without limit


Part = Chars | Edge | Boundary | Sequence | Choice | Repeat

EMPTY: Final = Sequence(())

_CONTROLS: Final = {"a": 0x07, "f": 0x0C, "t": 0x09, "n": 0x0A, "r": 0x0D, "v": 0x0B}
_CLASSES: Final = {"d": sets.DIGIT, "w": sets.WORD, "s": sets.SPACE}
# With a leading zero RE2 takes the braces as text.
_COUNT: Final = re.compile(r"\{(0|[1-9][0-9]{0,8})(?:(,)(0|[1-9][0-9]{0,8})?)?\}")
_FLAGS: Final = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAMED: Final = re.compile(r"\?P?<[A-Za-z_][A-Za-z_0-9]*>")
_HEX: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})")
_UNICODE: Final = re.compile(r"([pP])(?:\{(\^?)([A-Za-z_]{1,40})\}|([A-Z]))")
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]")

_WHOLE: Final = "a pattern always covers the whole value"


def parse_pattern(pattern: str) -> Part:
    """Read *pattern* into a tree.

    Raises:
        PatternRefused: it is not understood, or cannot be said in PostgreSQL's dialect.
    """
    return _without_edges(_Parser(pattern).whole(), left=True, right=True)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._boundaries = 0
        self._ignore_case = False
        self._dot_all = False

    def whole(self) -> Part:
        part = self._choice()
        if self._at < len(self._pattern):
            self._refuse("a ) has no (; write \\) for the character")
        return part

    def _choice(self) -> Part:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        if all(branch == EMPTY for branch in branches):
            return EMPTY
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Part:
        items: list[Part] = []
        while self._at < len(self._pattern) and self._peek() not in "|)":
            part = self._quantified(self._part())
            if part != EMPTY:
                items.append(part)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _quantified(self, part: Part) -> Part:
        counts = self._counts()
        if counts is None:
            return part
        self._accept("?")  # lazy or greedy: the same texts are covered
        if self._peek() in ("*", "+", "?") or _COUNT.match(self._pattern, self._at):
            self._refuse("two repetitions follow each other; put the first into ( )")
        return _repeated(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
            return simple
        found = _COUNT.match(self._pattern, self._at)
        if found is None:
            return None
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self._refuse(
                f"{found[0]} is no count; the first number must not exceed the second, "
                f"and none {MAX_REPEAT}"
            )
        self._at = found.end()
        return least, most

    def _part(self) -> Part:
        character = self._peek()
        match character:
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._refuse(
                    f"{character} has nothing to repeat; write \\{character} for the character"
                )
            case "{":
                self._refuse("{ starts no count such as {2,5}; write \\{ for the character")
        self._at += 1
        match character:
            case "^" | "$":
                return Edge(at_end=character == "$")
            case ".":
                return Chars(sets.UNIVERSE if self._dot_all else sets.complement(sets.NEWLINE))
        return self._chars(sets.single(ord(character)))

    def _chars(self, charset: CharSet) -> Chars:
        return Chars(sets.folded(charset) if self._ignore_case else charset)

    def _group(self) -> Part:
        start = self._at
        flags = self._ignore_case, self._dot_all
        self._at += 1
        if self._opened():
            return EMPTY  # (?i) and the like hold until the group around them ends
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"groups are nested deeper than {MAX_DEPTH}")
        part = self._choice()
        if not self._accept(")"):
            self._at = start
            self._refuse("a ( is not closed; write \\( for the character")
        self._depth -= 1
        self._ignore_case, self._dot_all = flags
        return part

    def _opened(self) -> bool:
        """Read what follows ``(``; return whether it was flags alone, which make no group."""
        if self._peek() != "?":
            return False
        if (named := _NAMED.match(self._pattern, self._at)) is not None:
            self._at = named.end()
            return False
        found = _FLAGS.match(self._pattern, self._at)
        if found is None or (found[3] == ")" and not (found[1] or found[2])):
            self._refuse_group()
        self._at = found.end()
        self._set_flags(found[1], True)
        self._set_flags(found[2] or "", False)
        return found[3] == ")"

    def _set_flags(self, flags: str, value: bool) -> None:
        # m and U change nothing here: lines end nowhere in a full match, and greed decides nothing.
        self._ignore_case = value if "i" in flags else self._ignore_case
        self._dot_all = value if "s" in flags else self._dot_all

    def _refuse_group(self) -> NoReturn:
        rest = self._pattern[self._at :]
        if (around := re.match(r"\?<?[=!]", rest)) is not None:
            self._refuse(
                f"look-around ({around[0]}...) is not possible; {_WHOLE}, "
                "so write what it consists of"
            )
        if rest.startswith("?P="):
            self._refuse("back-references are not possible; write the part again")
        shown = rest[:3].partition(")")[0] + (")" if ")" in rest[:3] else "")
        self._refuse(f"({shown} is no group; write ( ) or (?: ), and \\( for the character")

    def _escape(self) -> Part:
        following = self._pattern[self._at + 1 : self._at + 2]
        match following:
            case "b" | "B":
                self._boundaries += 1
                if self._boundaries > MAX_BOUNDARIES:
                    self._refuse(f"there are more than {MAX_BOUNDARIES} \\b and \\B")
                self._at += 2
                return Boundary(negated=following == "B")
            case "A" | "z":
                self._at += 2
                return Edge(at_end=following == "z")
        return Chars(self._escaped_set())

    def _escaped_set(self) -> CharSet:
        """Read an escape that stands for one character of a set, inside or outside brackets."""
        start = self._at
        self._at += 1
        following = self._peek()
        if following.lower() in _CLASSES:
            self._at += 1
            return self._negatable(_CLASSES[following.lower()], following.isupper())
        if (found := _UNICODE.match(self._pattern, self._at)) is not None:
            self._at = found.end()
            return self._unicode_set(found)
        self._at = start
        return self._fold(sets.single(self._escaped_character()))

    def _negatable(self, charset: CharSet, negated: bool) -> CharSet:
        charset = self._fold(charset)
        return sets.complement(charset) if negated else charset

    def _fold(self, charset: CharSet) -> CharSet:
        return sets.folded(charset) if self._ignore_case else charset

    def _unicode_set(self, found: re.Match[str]) -> CharSet:
        name = found[3] or found[4]
        charset = sets.unicode_class(name)
        if charset is None:
            self._refuse(f"\\p{{{name}}} is no class of characters; \\p{{L}} is any letter")
        return self._negatable(charset, (found[1] == "P") != bool(found[2]))

    def _escaped_character(self) -> int:
        self._at += 1
        following = self._peek()
        if following in _CONTROLS:
            self._at += 1
            return _CONTROLS[following]
        if (found := _HEX.match(self._pattern, self._at)) is not None:
            self._at = found.end()
            return self._code_point(int(found[1] or found[2], 16))
        if not following or following.isalnum() or not " " <= following <= "~":
            self._refuse_escape(following)
        self._at += 1
        return ord(following)

    def _code_point(self, number: int) -> int:
        if number == 0 or number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            self._refuse(f"\\x{{{number:x}}} is no character that can be stored")
        return number

    def _refuse_escape(self, following: str) -> NoReturn:
        if not following:
            self._refuse("the pattern ends with \\; write \\\\ for the character")
        if following in "123456789k":
            self._refuse("back-references are not possible; write the part again")
        if following == "Z":
            self._refuse(f"\\Z is not possible; {_WHOLE}, so leave it out")
        if following in "0Q":
            self._refuse(f"\\{following} is not possible; escape each character for itself")
        if following in "uU":
            self._refuse(f"\\{following} is not possible; write \\x{{20AC}} for a code point")
        self._refuse(f"\\{following} means nothing here; write {following!r} without \\")

    def _class(self) -> CharSet:
        start = self._at
        self._at += 1
        negated = self._accept("^")
        members: list[CharSet] = []
        while self._peek() != "]" or not members:
            if self._at >= len(self._pattern):
                self._at = start
                self._refuse("a [ is not closed; write \\[ for the character")
            members.append(self._member())
        self._at += 1
        charset = sets.union(members)
        charset = sets.complement(charset) if negated else sets.storable(charset)
        if not charset:
            self._refuse(f"{self._pattern[start : self._at]} covers no character")
        return charset

    def _member(self) -> CharSet:
        if (found := _POSIX.match(self._pattern, self._at)) is not None:
            return self._posix_set(found)
        if self._pattern[self._at : self._at + 2] in ("[:", "[.", "[="):
            self._refuse("[ before :, . or = means something else elsewhere; write \\[")
        if self._peek() == "\\" and not self._is_character_escape():
            charset = self._escaped_set()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._refuse("a class cannot begin a range; write \\- for the character")
            return charset
        low = self._class_character()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return self._fold(sets.single(low))
        self._at += 1
        return self._fold(self._range(low))

    def _range(self, low: int) -> CharSet:
        if self._peek() == "\\" and not self._is_character_escape():
            self._refuse("a class cannot end a range; write \\- for the character")
        if self._peek() == "[":
            self._refuse("write \\[ for the character at the end of a range")
        high = self._class_character()
        if high < low:
            self._refuse(f"the range {chr(low)!r} to {chr(high)!r} is empty; turn it round")
        if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
            self._refuse("- follows a range; write \\- for the character")
        return ((low, high),)

    def _posix_set(self, found: re.Match[str]) -> CharSet:
        charset = sets.POSIX.get(found[2])
        if charset is None:
            names = ", ".join(sets.POSIX)
            self._refuse(f"[:{found[2]}:] is no class of characters; there are {names}")
        self._at = found.end()
        return self._negatable(charset, bool(found[1]))

    def _is_character_escape(self) -> bool:
        following = self._pattern[self._at + 1 : self._at + 2]
        return following.lower() not in _CLASSES and following not in ("p", "P")

    def _class_character(self) -> int:
        if self._peek() == "\\":
            return self._escaped_character()
        self._at += 1
        return ord(self._pattern[self._at - 1])

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _accept(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _refuse(self, sentence: str) -> NoReturn:
        raise PatternRefused(f"{sentence} (character {self._at + 1})")


def _without_edges(part: Part, *, left: bool, right: bool) -> Part:
    """Take away ``^`` and ``$`` where a full match has them anyway; refuse them elsewhere.

    *left* and *right* tell whether nothing can stand before or after *part*.
    """
    match part:
        case Edge(at_end=at_end):
            if right if at_end else left:
                return EMPTY
            raise PatternRefused(
                f"{'$' if at_end else '^'} stands inside the pattern, where it can never hold; "
                f"{_WHOLE}, so leave it out, or write \\{'$' if at_end else '^'} for the character"
            )
        case Sequence(items=items):
            return _sequence_without_edges(items, left=left, right=right)
        case Choice(items=items):
            return Choice(tuple(_without_edges(item, left=left, right=right) for item in items))
        case Repeat(item=item):
            _without_edges(item, left=False, right=False)
            if _has_boundary(item):
                raise PatternRefused(
                    "\\b and \\B cannot be repeated; put them outside the repetition"
                )
    return part


def _sequence_without_edges(items: tuple[Part, ...], *, left: bool, right: bool) -> Part:
    remaining = list(items)
    while left and remaining and remaining[0] == Edge(at_end=False):
        del remaining[0]
    while right and remaining and remaining[-1] == Edge(at_end=True):
        del remaining[-1]
    last = len(remaining) - 1
    kept = [
        _without_edges(item, left=left and index == 0, right=right and index == last)
        for index, item in enumerate(remaining)
    ]
    return kept[0] if len(kept) == 1 else Sequence(tuple(kept))


def _has_boundary(part: Part) -> bool:
    match part:
        case Boundary():
            return True
        case Sequence(items=items) | Choice(items=items):
            return any(map(_has_boundary, items))
        case Repeat(item=item):
            return _has_boundary(item)
        case _:
            return False


def _repeated(part: Part, least: int, most: int | None) -> Part:
    """Repeat *part*; one that may be empty is rewritten, because automata grow large on it.

    ``(x?){2,5}`` covers what ``x{0,5}`` covers.
    """
    if part == EMPTY or most == 0:
        return EMPTY
    if can_be_empty(part):
        return Repeat(_not_empty(part), 0, most)
    return Repeat(part, least, most)


def can_be_empty(part: Part) -> bool:
    match part:
        case Chars():
            return False
        case Sequence(items=items):
            return all(map(can_be_empty, items))
        case Choice(items=items):
            return any(map(can_be_empty, items))
        case Repeat(item=item, least=least):
            return least == 0 or can_be_empty(item)
        case _:
            return True


def _not_empty(part: Part) -> Part:
    """Return *part* without the empty text where that is simple, else as it is."""
    match part:
        case Repeat(item=item, least=0, most=most) if not can_be_empty(item):
            return item if most == 1 else Repeat(item, 1, most)
        case Choice(items=items):
            kept = tuple(_not_empty(item) for item in items if item != EMPTY)
            return kept[0] if len(kept) == 1 else Choice(kept)
        case _:
            return part
