"""The statements that sqlglot does not know or knows too slowly, written here with names quoted by it.

Each one has a fixed shape with names in it, and expressions that were rendered before.
"""

from __future__ import annotations

from collections.abc import Iterable

from mdm_gitops.warehouse.ddl.trees import quoted

DEFER_CONSTRAINTS = "SET CONSTRAINTS ALL DEFERRED"
_FENCE = "$filling$"


def create_table(schema: str, table: str, elements: Iterable[str]) -> str:
    """Return the table of *elements*, columns and rules that were rendered one by one."""
    return f"CREATE TABLE {quoted(schema, table)} ({', '.join(elements)})"


def validate_constraint(schema: str, table: str, constraint: str) -> str:
    return f"ALTER TABLE {quoted(schema, table)} VALIDATE CONSTRAINT {quoted(constraint)}"


def rename_constraint(schema: str, table: str, old: str, new: str) -> str:
    return f"ALTER TABLE {quoted(schema, table)} RENAME CONSTRAINT {quoted(old)} TO {quoted(new)}"


def drop_function(schema: str, name: str) -> str:
    return f"DROP FUNCTION IF EXISTS {quoted(schema, name)}()"


def filling_function(schema: str, name: str, *, source: str, target: str, value: str) -> str:
    """Return a trigger function that keeps *target* at *value*, an expression on ``NEW``.

    A write that leaves *source* as it was leaves *target* as it was, too: there it may hold an
    archived value that says more than the cast of the present one.
    """
    body = (
        "BEGIN\n"
        "  IF TG_OP = 'UPDATE' THEN\n"
        f"    IF NEW.{quoted(source)} IS NOT DISTINCT FROM OLD.{quoted(source)} THEN\n"
        "      RETURN NEW;\n"
        "    END IF;\n"
        "  END IF;\n"
        f"  NEW.{quoted(target)} := {value};\n"
        "  RETURN NEW;\n"
        "END"
    )
    assert _FENCE not in body, "the body would end its own quotes"
    return (
        f"CREATE OR REPLACE FUNCTION {quoted(schema, name)}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path = pg_catalog AS {_FENCE}\n{body}\n{_FENCE}"
    )
