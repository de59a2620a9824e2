"""Entities: the named schema of a kind of record, as ``entities/<name>.yaml`` writes it.

Shape only. What must hold between the parts of one entity is in ``model.checks``, what must hold
between files in ``model.repository``, and how an entity becomes tables in ``plan.physical``.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import Field

from mdm_gitops.model.base import Definition
from mdm_gitops.model.names import fold
from mdm_gitops.model.values import DataType, coerce

Scalar = str | int | float | bool
TEXTUAL: Final = (DataType.STRING, DataType.TEXT)
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class AccessMode(StrEnum):
    OPEN = "open"
    RESTRICTED = "restricted"  # domain-wide grants do not reach the entity


class Classification(StrEnum):
    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"  # masked unless the caller holds viewrestricted


class Direction(StrEnum):
    ASC = "asc"
    DESC = "desc"


class MatchMode(StrEnum):
    EXACT = "exact"
    FUZZY = "fuzzy"
    PHONETIC = "phonetic"
    NUMBER = "number"
    DATE = "date"


class SeedMode(StrEnum):
    CREATE = "create"  # insert what is absent, touch nothing else
    UPSERT = "upsert"  # the same, and update rows that no person changed since
    ENFORCE = "enforce"  # overwrite what persons changed


class Access(Definition):
    mode: Annotated[AccessMode, Field(strict=False)] = AccessMode.OPEN


class Reference(Definition):
    """Points at a row of *entity* by the value of its *column* (default: its single key column)."""

    entity: str
    column: str | None = None


class ColumnUi(Definition):
    message: str | None = None


class Column(Definition):
    name: str
    display_name: str | None = None
    description: str | None = None
    data_type: Annotated[DataType, Field(strict=False)]
    nullable: bool = True
    unique: bool = False
    default: Scalar | None = None
    max_length: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    precision: Annotated[int, Field(ge=1, le=1000)] | None = None
    scale: Annotated[int, Field(ge=0, le=1000)] | None = None
    pattern: Annotated[str, Field(max_length=512)] | None = None
    min_value: Scalar | None = None
    max_value: Scalar | None = None
    allowed_values: Annotated[tuple[Scalar, ...], Field(strict=False, max_length=10_000)] = ()
    reference: Reference | None = None
    classification: Annotated[Classification, Field(strict=False)] = Classification.INTERNAL
    autocomplete: bool = False
    ui: ColumnUi | None = None
    renamed_from: str | None = None

    @property
    def folded(self) -> str:
        return fold(self.name)

    @property
    def restricted(self) -> bool:
        return self.classification is Classification.RESTRICTED

    def typed(self, raw: Any) -> Any:
        """Return *raw* as a value of this column's type; see ``values.coerce`` for errors."""
        return coerce(self.data_type, raw)


class SortColumn(Definition):
    column: str
    direction: Annotated[Direction, Field(strict=False)] = Direction.ASC


class UniqueConstraint(Definition):
    name: str
    columns: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=16)]


class SimilarityColumn(Definition):
    name: str
    weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    match_mode: Annotated[MatchMode, Field(strict=False)] = MatchMode.FUZZY


class Similarity(Definition):
    enabled: bool = True
    top_n: Annotated[int, Field(ge=1, le=100)] = 10
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.3
    columns: Annotated[tuple[SimilarityColumn, ...], Field(strict=False)] = ()


class Search(Definition):
    """*columns* empty means all that hold text and are not restricted."""

    enabled: bool = False
    columns: Strings = ()


class SurvivorshipRule(StrEnum):
    """Which of two rows gives a value to the one that is kept; each may leave it to the next rule."""

    MOST_RECENT = "mostRecent"  # the row that was changed last
    MOST_COMPLETE = "mostComplete"  # the one that has a value at all
    LONGEST = "longest"  # the longer text
    TRUSTED_SOURCE = "trustedSource"  # the row whose source stands first in sources.order
    SURVIVOR = "survivor"  # the row that is kept, whatever it has


SurvivorshipRules = Annotated[
    tuple[Annotated[SurvivorshipRule, Field(strict=False)], ...],
    Field(strict=False, min_length=1, max_length=len(SurvivorshipRule)),
]


class SurvivorshipSources(Definition):
    """*column* says where a row comes from; *order* has the most trusted source first."""

    column: str
    order: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=1_000)]


class SurvivorshipColumn(Definition):
    name: str
    rules: SurvivorshipRules


class Survivorship(Definition):
    rules: SurvivorshipRules = (SurvivorshipRule.MOST_COMPLETE,)
    sources: SurvivorshipSources | None = None
    columns: Annotated[tuple[SurvivorshipColumn, ...], Field(strict=False)] = ()


class Lifecycle(Definition):
    prevent_remove: bool = False


class ConsumptionView(Definition):
    """A SQL view for other systems. ``columns`` empty means all of the entity's columns."""

    view_schema: Annotated[str, Field(alias="schema")]
    name: str
    include_deleted: bool = False
    include_system_columns: bool = False
    columns: Strings = ()


class Consumption(Definition):
    views: Annotated[tuple[ConsumptionView, ...], Field(strict=False)] = ()


class SeedOptions(Definition):
    mode: Annotated[SeedMode, Field(strict=False)] = SeedMode.UPSERT


class Entity(Definition, defer_build=False):
    name: str
    display_name: str | None = None
    domain: str
    description: str | None = None
    version: str = "1.0.0"
    access: Access = Access()
    history_enabled: bool = False
    approval_required: bool = False
    allow_same_author_approval: bool = False
    deleted_retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    key_columns: Strings = ()
    sort_columns: Annotated[tuple[SortColumn, ...], Field(strict=False)] = ()
    display_ref_column: str | None = None
    unique_constraints: Annotated[tuple[UniqueConstraint, ...], Field(strict=False)] = ()
    aliases: Strings = ()
    renamed_from: str | None = None
    search: Search = Search()
    similarity: Similarity | None = None
    survivorship: Survivorship = Survivorship()
    lifecycle: Lifecycle = Lifecycle()
    consumption: Consumption = Consumption()
    seed: SeedOptions = SeedOptions()
    columns: Annotated[tuple[Column, ...], Field(strict=False, min_length=1, max_length=500)]

    @cached_property
    def folded(self) -> str:
        return fold(self.name)

    @cached_property
    def column_by_name(self) -> dict[str, Column]:
        """Columns by folded name, in the order the author wrote them."""
        return {column.folded: column for column in self.columns}

    @cached_property
    def searched_columns(self) -> tuple[Column, ...]:
        """Columns that search looks into, indexed or not; never one that is restricted.

        Short ones first, because of a row only so many words count.
        """
        chosen = {fold(name) for name in self.search.columns}
        found = (
            column
            for column in self.columns
            if (column.folded in chosen if chosen else column.data_type in TEXTUAL)
            and not column.restricted
        )
        return tuple(sorted(found, key=lambda column: column.data_type is DataType.TEXT))

    def column(self, name: str) -> Column | None:
        return self.column_by_name.get(fold(name))
