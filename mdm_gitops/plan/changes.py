"""The closed set of changes a plan can hold: one frozen class per kind, nothing else.

One module, however long: whoever matches on changes must see all of them in one place.

A change says *what* becomes different, in the words of an entity. What it costs is decided in
``plan.hazards``, how it is written as SQL in ``warehouse.ddl``, how it reads in ``plan.text`` and
its siblings; each of them matches on these classes and on nothing textual.

Every class names the phase its statements belong to:

``prepare``  online and invisible: a retyped column is filled beside the old one
``flip``     one transaction with all brief DDL and all metadata; within it, ``Step`` gives the order
``enforce``  online: rules of tables that hold rows are built and proven without blocking writers
``seed``     rows of seed files, one transaction per group of entities that refer to each other
``link``     online: foreign keys of tables that hold rows, after the seeds they may point at
``finish``   the entities that are complete are marked as deployed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

from mdm_gitops.model import PermissionGrant, Project, Seed, SeedMode, Webhook
from mdm_gitops.plan.physical import Check, ForeignKey, Index, PhysicalColumn, Role, Table, View


class Phase(StrEnum):
    PREPARE = "prepare"
    FLIP = "flip"
    ENFORCE = "enforce"
    SEED = "seed"
    LINK = "link"
    FINISH = "finish"


class Step(IntEnum):
    """The order inside the flip. Names are freed before they are taken, tables before columns
    before rules: each later kind is found under the final name of what holds it."""

    DROP_VIEW = 1
    DROP_FOREIGN_KEY = 2
    DROP_RULE = 3
    ARCHIVE = 4
    RENAME = 5  # a rename in a chain or a cycle first steps aside ...
    ARRIVE = 6  # ... and takes its new name here
    RESTORE = 7
    COLUMN_ARCHIVE = 8
    COLUMN_RENAME = 9
    COLUMN_ARRIVE = 10
    COLUMN_RESTORE = 11
    RULE_RENAME = 12
    RULE_ARRIVE = 13
    CREATE = 14
    ALTER = 15
    ADD_RULE = 16
    ADD_FOREIGN_KEY = 17
    CREATE_VIEW = 18
    METADATA = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """*old* becomes *new*; by way of *aside* when another rename still holds the name *new*."""

    old: str
    new: str
    aside: str | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """Base of all changes. *entity* is the folded name after the plan ("" for project-wide)."""

    kind: ClassVar[str]
    entity: str = ""


# --- entities -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CreateEntity(Change):
    """CREATE TABLE for each table with columns, defaults, NOT NULL, primary key and checks;
    indexes and foreign keys of it follow as ``AddIndex`` and ``AddForeignKey`` of the same plan."""

    kind: ClassVar[str] = "create-entity"
    tables: tuple[Table, ...]


@dataclass(frozen=True, kw_only=True)
class RenameEntity(Change):
    """Rename the tables; *reverted* when a withdrawn ``renamedFrom`` is taken back."""

    kind: ClassVar[str] = "rename-entity"
    old_entity: str
    tables: tuple[Rename, ...]
    reverted: bool = False


@dataclass(frozen=True, kw_only=True)
class RemoveEntity(Change):
    """Rename the tables to their archive names. Rows stay in them."""

    kind: ClassVar[str] = "remove-entity"
    archive_number: int
    tables: tuple[Rename, ...]


@dataclass(frozen=True, kw_only=True)
class RestoreEntity(Change):
    """Rename archived tables back."""

    kind: ClassVar[str] = "restore-entity"
    archive_number: int
    tables: tuple[Rename, ...]


@dataclass(frozen=True, kw_only=True)
class AddSatellite(Change):
    """Create the edit or history table."""

    kind: ClassVar[str] = "add-satellite"
    role: Role
    table: Table


@dataclass(frozen=True, kw_only=True)
class RemoveSatellite(Change):
    """Archive the edit or history table: approval or history was switched off."""

    kind: ClassVar[str] = "remove-satellite"
    role: Role
    table: Rename


@dataclass(frozen=True, kw_only=True)
class RestoreSatellite(Change):
    """Bring the archived edit or history table back: approval or history is on again."""

    kind: ClassVar[str] = "restore-satellite"
    role: Role
    table: Rename


# --- columns --------------------------------------------------------------------------------------
# ``tables`` are physical names as they are after the flip's ARRIVE and RESTORE steps (the final
# ones); satellites that are archived are among them, so that they can come back later.


@dataclass(frozen=True, kw_only=True)
class AddColumn(Change):
    """ADD COLUMN. In the main table with its default and NOT NULL, in satellites with neither."""

    kind: ClassVar[str] = "add-column"
    column: PhysicalColumn
    main_table: str | None  # None: it stands there already
    satellite_tables: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RenameColumn(Change):
    kind: ClassVar[str] = "rename-column"
    column: Rename
    tables: tuple[str, ...]
    reverted: bool = False


@dataclass(frozen=True, kw_only=True)
class RemoveColumn(Change):
    """Rename the column to its archive name; its NOT NULL and default go (``main_table`` only)."""

    kind: ClassVar[str] = "remove-column"
    column: str
    archived_as: str
    main_table: str
    tables: tuple[str, ...]  # all of them, the main one included
    had_not_null: bool = False
    had_default: bool = False


@dataclass(frozen=True, kw_only=True)
class RestoreColumn(Change):
    """Rename an archived column back. Its rules follow as changes of their own."""

    kind: ClassVar[str] = "restore-column"
    column: str
    archived_as: str
    type: str
    tables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WidenColumn(Change):
    """ALTER COLUMN TYPE where PostgreSQL keeps the rows as they are (no rewrite)."""

    kind: ClassVar[str] = "widen-column"
    column: str
    old_type: str
    new_type: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The online part of a retype on tables that hold rows; idempotent, resumed after a crash.

    Per table: add *target* (unless *exists*), add the castable check NOT VALID, a trigger that
    keeps *target* equal to the cast of *source* on each write, fill in batches, validate the check.
    All names here are the ones before the flip.
    """

    entity: str  # name before the flip, for the record
    source: str  # the column that holds the values now
    target: str  # the column being filled: _new_<c>, or an archived column taken back
    taken_from: str | None  # physical name of the archive that becomes *target*, if any
    exists: bool  # *target* is there already (an interrupted run)
    tables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RetypeColumn(Change):
    """New column, filled by a proven cast; the old one becomes an archive.

    In the flip, per table: *source* is renamed to *archived_as* and, with *filling*, its *target*
    to *column*. Without *filling* (no rows): the archive *restored_from* is renamed to *column*,
    or the column is added anew (with default and NOT NULL on the main table).

    *chain* are the types a value of the archive *restored_from* went through to become the present
    one, both ends included: a row whose archived value, cast along the chain, equals the present
    value was not edited and gets the archived value back exactly. *keep_archived_where_null*: the
    archive was a removed column, not the source of this one; its values stand where none are now.
    """

    kind: ClassVar[str] = "retype-column"
    column: str  # final name
    source: str  # physical name before the flip
    archived_as: str
    old_type: str
    new: PhysicalColumn
    main_table: str  # final name
    tables: tuple[str, ...]  # final names, the main one included
    had_not_null: bool = False
    had_default: bool = False
    restored_from: str | None = None
    chain: tuple[str, ...] = ()
    keep_archived_where_null: bool = False
    filling: Filling | None = None


@dataclass(frozen=True, kw_only=True)
class AbandonFilling(Change):
    """A retype that was begun and is no longer wanted: the working column becomes an archive.

    All of it happens in the prepare phase, before any filling begins, because another retype of the
    plan may need the name of *target*. *source*, where it is known, loses its castable check.
    """

    kind: ClassVar[str] = "abandon-filling"
    column: str
    target: str
    archived_as: str
    tables: tuple[str, ...]  # names before the flip
    source: str = ""


# --- rules of the main table ----------------------------------------------------------------------
# *online*: the table holds rows, so the statements belong to the enforce phase where they scan.


@dataclass(frozen=True, kw_only=True)
class SetRequired(Change):
    """NOT NULL. Online: a helper check NOT VALID in the flip (unless *helper_exists*); in the
    enforce phase VALIDATE, SET NOT NULL, then DROP of the helper as a statement of its own."""

    kind: ClassVar[str] = "set-required"
    table: str
    column: str
    online: bool
    helper_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class DropRequired(Change):
    kind: ClassVar[str] = "drop-required"
    table: str
    column: str


@dataclass(frozen=True, kw_only=True)
class SetDefault(Change):
    kind: ClassVar[str] = "set-default"
    table: str
    column: PhysicalColumn  # with the new default


@dataclass(frozen=True, kw_only=True)
class DropDefault(Change):
    kind: ClassVar[str] = "drop-default"
    table: str
    column: str


@dataclass(frozen=True, kw_only=True)
class AddCheck(Change):
    """ADD CONSTRAINT CHECK; online: NOT VALID in the flip, VALIDATE in the enforce phase.

    *replaces*: the proven check of the same kind that the plan drops from the same column, where
    the column keeps its values. A rule that lets as much through is safe; another reads old → new.
    """

    kind: ClassVar[str] = "add-check"
    table: str
    check: Check
    column_type: str
    online: bool
    replaces: Check | None = None


@dataclass(frozen=True, kw_only=True)
class DropCheck(Change):
    kind: ClassVar[str] = "drop-check"
    table: str
    check: str  # name of the constraint
    column: str = ""
    rule: str = ""  # RuleKind, "" when it was changed by hand


@dataclass(frozen=True, kw_only=True)
class ValidateCheck(Change):
    """An interrupted or hand-made NOT VALID check of ours is proven (enforce phase)."""

    kind: ClassVar[str] = "validate-check"
    table: str
    check: str
    rule: Check | None = None  # what it says, so that the rows that break it can be counted
    column_type: str = ""


@dataclass(frozen=True, kw_only=True)
class AddIndex(Change):
    """CREATE [UNIQUE] INDEX; online: CONCURRENTLY in the enforce phase, *rebuild* first drops our
    own invalid leftover of the same name (DROP INDEX CONCURRENTLY)."""

    kind: ClassVar[str] = "add-index"
    table: str
    index: Index
    online: bool
    rebuild: bool = False


@dataclass(frozen=True, kw_only=True)
class DropIndex(Change):
    kind: ClassVar[str] = "drop-index"
    table: str
    index: Index


@dataclass(frozen=True, kw_only=True)
class AddForeignKey(Change):
    """ADD FOREIGN KEY. Online: NOT VALID then VALIDATE, both in the link phase (after the indexes,
    one of which may be the unique index it needs, and after the seeds). Else whole, in the flip."""

    kind: ClassVar[str] = "add-foreign-key"
    table: str
    foreign_key: ForeignKey
    online: bool


@dataclass(frozen=True, kw_only=True)
class DropForeignKey(Change):
    kind: ClassVar[str] = "drop-foreign-key"
    table: str  # name before the flip's renames
    foreign_key: ForeignKey


@dataclass(frozen=True, kw_only=True)
class ValidateForeignKey(Change):
    """An interrupted or hand-made NOT VALID foreign key of ours is proven (link phase)."""

    kind: ClassVar[str] = "validate-foreign-key"
    table: str
    foreign_key: str
    rule: ForeignKey | None = None  # as of a check


class ObjectKind(StrEnum):
    CONSTRAINT = "constraint"  # ALTER TABLE ... RENAME CONSTRAINT (also a primary key)
    INDEX = "index"  # ALTER INDEX ... RENAME TO


@dataclass(frozen=True, kw_only=True)
class RenameObject(Change):
    """A rule follows the rename of its column or table. *table* is the final name."""

    kind: ClassVar[str] = "rename-object"
    table: str
    object_kind: ObjectKind
    rename: Rename


# --- views, definition, bookkeeping ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CreateView(Change):
    """CREATE SCHEMA IF NOT EXISTS, CREATE VIEW. *again*: dropped earlier in the same plan only
    because something beneath it moves; *gains*: only to come back with more columns."""

    kind: ClassVar[str] = "create-view"
    view: View
    again: bool = False
    gains: bool = False


@dataclass(frozen=True, kw_only=True)
class DropView(Change):
    kind: ClassVar[str] = "drop-view"
    schema: str
    name: str
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    path: str  # interface spelling: ``columns.code.displayName``
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class ChangeDefinition(Change):
    """Properties without a physical form: display names, classification, access, similarity ..."""

    kind: ClassVar[str] = "change-definition"
    fields: tuple[FieldChange, ...]
    widens_access: bool = False  # unmasks a column or opens a restricted entity


@dataclass(frozen=True, kw_only=True)
class FinishEntity(Change):
    """All of it stands in the catalog already; an interrupted run only has to say so."""

    kind: ClassVar[str] = "finish-entity"


@dataclass(frozen=True, kw_only=True)
class ChangeProject(Change):
    kind: ClassVar[str] = "change-project"
    project: Project
    fields: tuple[FieldChange, ...] = ()


# --- access, webhooks, seeds ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GrantPermission(Change):
    """*replaces*: the grant of the same principal, domain and entity that the plan revokes."""

    kind: ClassVar[str] = "grant-permission"
    grant: PermissionGrant
    replaces: PermissionGrant | None = None


@dataclass(frozen=True, kw_only=True)
class RevokePermission(Change):
    """*replaced_by*: the grant of the same principal, domain and entity that the plan adds."""

    kind: ClassVar[str] = "revoke-permission"
    grant: PermissionGrant
    replaced_by: PermissionGrant | None = None


@dataclass(frozen=True, kw_only=True)
class AddWebhook(Change):
    kind: ClassVar[str] = "add-webhook"
    webhook: Webhook


@dataclass(frozen=True, kw_only=True)
class ChangeWebhook(Change):
    kind: ClassVar[str] = "change-webhook"
    webhook: Webhook
    fields: tuple[FieldChange, ...]


@dataclass(frozen=True, kw_only=True)
class RemoveWebhook(Change):
    kind: ClassVar[str] = "remove-webhook"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedCounts:
    """How a seed file compares with the live rows, by the entity's key columns."""

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    left_alone: int = 0  # changed by a person since, mode is not enforce
    left_alone_keys: tuple[str, ...] = ()  # the first of them, for the reader


@dataclass(frozen=True, slots=True, kw_only=True)
class UserColumn:
    """A column of a table of rows, and how events tell it."""

    name: str
    shown: str  # as the definition spells it
    is_moment: bool = False


@dataclass(frozen=True, kw_only=True)
class ApplySeed(Change):
    """Upsert the rows of a seed file; rows that the file does not name are never touched."""

    kind: ClassVar[str] = "apply-seed"
    seed: Seed = field(repr=False)
    mode: SeedMode
    table: str
    history_table: str | None
    user_columns: tuple[UserColumn, ...]  # all of the table's, for the history and the events
    key_columns: tuple[str, ...]
    columns: tuple[PhysicalColumn, ...]  # those that the file gives, by physical name
    counts: SeedCounts
    group: int  # entities that refer to each other in a cycle share one; ascending = order


ALL: tuple[type[Change], ...] = (
    CreateEntity,
    RenameEntity,
    RemoveEntity,
    RestoreEntity,
    AddSatellite,
    RemoveSatellite,
    RestoreSatellite,
    AddColumn,
    RenameColumn,
    RemoveColumn,
    RestoreColumn,
    WidenColumn,
    RetypeColumn,
    AbandonFilling,
    SetRequired,
    DropRequired,
    SetDefault,
    DropDefault,
    AddCheck,
    DropCheck,
    ValidateCheck,
    AddIndex,
    DropIndex,
    AddForeignKey,
    DropForeignKey,
    ValidateForeignKey,
    RenameObject,
    CreateView,
    DropView,
    ChangeDefinition,
    FinishEntity,
    ChangeProject,
    GrantPermission,
    RevokePermission,
    AddWebhook,
    ChangeWebhook,
    RemoveWebhook,
    ApplySeed,
)

AnyChange = (
    CreateEntity
    | RenameEntity
    | RemoveEntity
    | RestoreEntity
    | AddSatellite
    | RemoveSatellite
    | RestoreSatellite
    | AddColumn
    | RenameColumn
    | RemoveColumn
    | RestoreColumn
    | WidenColumn
    | RetypeColumn
    | AbandonFilling
    | SetRequired
    | DropRequired
    | SetDefault
    | DropDefault
    | AddCheck
    | DropCheck
    | ValidateCheck
    | AddIndex
    | DropIndex
    | AddForeignKey
    | DropForeignKey
    | ValidateForeignKey
    | RenameObject
    | CreateView
    | DropView
    | ChangeDefinition
    | FinishEntity
    | ChangeProject
    | GrantPermission
    | RevokePermission
    | AddWebhook
    | ChangeWebhook
    | RemoveWebhook
    | ApplySeed
)
"""The same set as a type, so that a ``match`` can be held to be complete."""
