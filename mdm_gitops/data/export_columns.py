"""The columns of an export, and each of them as a cell of CSV: expressions over the row ``t``.

By default the columns of the definition in its order and no others, so that what is exported can be
imported again as it is; ``fields`` chooses among all members of a row. Cells are what ``row_json``
writes, but for texts that a spreadsheet would run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.csv_text import neutralise, neutralise_sql
from mdm_gitops.data.row_json import Output, RowState, chosen, outputs
from mdm_gitops.filter import SYSTEM_COLUMNS
from mdm_gitops.model import DataType, Entity, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportColumn:
    output: Output  # as JSON has it
    data_type: DataType | None  # of ``stored``; None for a constant text: a mask, or a state
    stored: str = ""  # the column itself


def export_columns(
    asking: Asking, entity: Entity, *, fields: str, state: RowState
) -> tuple[ExportColumn, ...]:
    """Return the columns that *fields* names, those of the definition if it names none.

    Raises:
        InputError: a name is no member of the row, or is there twice.
    """
    sees_restricted = asking.rights(entity).sees_restricted
    members = outputs(entity, sees_restricted=sees_restricted, state=state)
    if fields.strip(" ,"):
        members = chosen(members, fields, entity)
    else:
        members = tuple(each for each in members if entity.column(each.name) is not None)
    return tuple(_column(entity, each, sees_restricted) for each in members)


def _column(entity: Entity, output: Output, sees_restricted: bool) -> ExportColumn:
    folded = fold(output.name)
    column = entity.column(folded)
    if column is None:
        data_type = SYSTEM_COLUMNS.get(folded)
    else:
        data_type = None if column.restricted and not sees_restricted else column.data_type
    return ExportColumn(output=output, data_type=data_type, stored=f't."{folded}"')


def csv_select_list(columns: tuple[ExportColumn, ...]) -> str:
    return ", ".join(f'{_csv_cell(each)} AS "{neutralise(each.output.name)}"' for each in columns)


def _csv_cell(column: ExportColumn) -> str:
    match column.data_type:
        case DataType.STRING | DataType.TEXT:
            return neutralise_sql(column.stored)
        case DataType.BOOL:
            # COPY itself writes t and f.
            return (
                f"CASE WHEN {column.stored} THEN 'true' WHEN NOT {column.stored} THEN 'false' END"
            )
        case _:
            return column.output.sql
