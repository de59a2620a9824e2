"""Which columns an import writes, and by which of them it finds rows: the header and ``keyColumns``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mdm_gitops.data.asking import Asking, changeable_entity, refuse_restricted
from mdm_gitops.data.import_csv import Unreadable
from mdm_gitops.data.row_input import SYSTEM_PREFIX
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.errors import InputError
from mdm_gitops.model import Column, DataType, Entity, fold
from mdm_gitops.model.suggest import did_you_mean


class Mode(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What the caller asks for, beside the body. *header* is None where each row names its columns."""

    entity: str
    mode: Mode = Mode.INSERT
    key_columns: str = ""
    batch_name: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportColumns:
    """Physical names: *staged* in the order of the header, *key* empty to insert only."""

    target: Target
    staged: tuple[str, ...]
    key: tuple[str, ...]


def import_columns(
    asking: Asking, request: ImportRequest, header: Sequence[str] | None
) -> ImportColumns:
    """Return what *header* and *request* mean for the entity as it is now.

    Raises:
        NotFound, AccessDenied: the caller may not write to the entity.
        InputError: the header or the key columns do not fit.
    """
    target = target_of(asking, changeable_entity(asking, request.entity))
    entity = target.entity
    staged = target.columns if header is None else _staged(entity, header)
    key = _key(asking, target, request.key_columns)
    if request.mode is Mode.INSERT:
        key = ()
        _refuse_incomplete(entity, staged)
    elif not key:
        raise InputError(
            f"{entity.name} has no key columns",
            hint="name the columns that tell which row is meant in keyColumns",
            parameter="keyColumns",
        )
    elif missing := [name for name in key if name not in staged]:
        raise InputError(
            f"the header lacks key column {entity.column_by_name[missing[0]].name!r}",
            hint="rows are found by it; name others in keyColumns",
            parameter="keyColumns",
        )
    return ImportColumns(target=target, staged=staged, key=key)


# --- the header -----------------------------------------------------------------------------------


def _staged(entity: Entity, header: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for number, name in enumerate(header, start=1):
        column = _column(entity, name, number, header)
        if column.folded in found:
            first = found[column.folded]
            also = "" if first == name else f", once as {first!r}"
            raise Unreadable(f"column {name!r} stands in the header twice{also}", line=1)
        found[column.folded] = name
    return tuple(found)


def _column(entity: Entity, name: str, number: int, header: Sequence[str]) -> Column:
    if not name:
        raise Unreadable(f"column {number} of the header has no name", line=1)
    if (column := entity.column(name)) is not None:
        return column
    display = [
        each
        for each in entity.columns
        if each.display_name and each.display_name.strip().casefold() == name.casefold()
    ]
    if len(display) == 1:
        return display[0]
    if display:
        raise Unreadable(
            f"{name!r} is the display name of several columns",
            line=1,
            hint="write in the header " + " or ".join(each.name for each in display),
        )
    raise _no_column(entity, name, header)


def _no_column(entity: Entity, name: str, header: Sequence[str]) -> InputError:
    if fold(name).startswith(SYSTEM_PREFIX):
        return InputError(
            f"the header names {name[:60]!r}, which is written by the service alone",
            hint="leave the column out",
            code="ENTITY_VALIDATION_SYSTEM_COLUMN",
            column=name[:60],
        )
    for sign, spelt in ((";", ";"), ("\t", "tab"), ("|", "|"), (",", ",")):
        parts = name.split(sign)
        if len(header) == 1 and len(parts) > 1 and entity.column(parts[0].strip(' "')):
            return Unreadable(
                "the header is one column only", line=1, hint=f"give the separator: sep={spelt}"
            )
    known = [each.name for each in entity.columns]
    return InputError(
        f"the header names {name[:60]!r}, which is no column of {entity.name}",
        hint=did_you_mean(name, known),
        code="ENTITY_VALIDATION_UNKNOWN_COLUMN",
        column=name[:60],
    )


def _refuse_incomplete(entity: Entity, staged: Sequence[str]) -> None:
    """Refuse a header in which a required column is absent: every row would be rejected."""
    missing = [
        column.name
        for column in entity.columns
        if not column.nullable and column.default is None and column.folded not in staged
    ]
    if missing:
        raise InputError(
            f"the header lacks {', '.join(missing)}, which every new row must have",
            hint="to change only some columns of rows that are there, use mode=upsert",
            code="ENTITY_VALIDATION_REQUIRED_FIELD",
            errors=[
                {
                    "column": name,
                    "code": "ENTITY_VALIDATION_REQUIRED_FIELD",
                    "message": f"{name} is required",
                }
                for name in missing
            ],
        )


# --- the key --------------------------------------------------------------------------------------


def _key(asking: Asking, target: Target, names: str) -> tuple[str, ...]:
    entity = target.entity
    given = [name.strip() for name in names.split(",") if name.strip()]
    key = []
    for name in given or entity.key_columns:
        column = entity.column(name)
        if column is None:
            raise InputError(
                f"keyColumns names {name[:60]!r}, which is no column of {entity.name}",
                hint=did_you_mean(name, (each.name for each in entity.columns)),
                parameter="keyColumns",
            )
        if column.data_type is DataType.JSON:
            raise InputError(
                f"no row is found by json column {column.name!r}", parameter="keyColumns"
            )
        refuse_restricted(asking, entity, column.folded, purpose="used to find rows")
        key.append(column.folded)
    if key and not any(set(unique) <= set(key) for unique in target.unique_sets):
        sets = " or ".join(
            ",".join(entity.column_by_name[name].name for name in unique)
            for unique in target.unique_sets
        )
        raise InputError(
            "keyColumns can mean several rows at once: they are not unique",
            hint=f"use {sets}" if sets else f"{entity.name} has no unique columns",
            parameter="keyColumns",
        )
    return tuple(dict.fromkeys(key))
