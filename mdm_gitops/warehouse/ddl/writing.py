"""Which function writes which change: the table from classes of ``plan.changes`` to SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never, cast

from mdm_gitops.plan import changes
from mdm_gitops.plan.changes import AnyChange, Change
from mdm_gitops.warehouse.ddl import constraints, metadata, retype, seeds, tables
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.names import Schemas


def write(change: Change, schemas: Schemas) -> Iterator[Statement]:
    """Yield what carries *change* out; see ``ddl.statements``."""
    one = cast(AnyChange, change)
    match one:
        case changes.CreateEntity():
            return tables.create_entity(one, schemas)
        case changes.RenameEntity():
            return tables.rename_entity(one, schemas)
        case changes.RemoveEntity() | changes.RemoveSatellite():
            return tables.remove_tables(one, schemas)
        case changes.RestoreEntity() | changes.RestoreSatellite():
            return tables.restore_tables(one, schemas)
        case changes.AddSatellite():
            return tables.add_satellite(one, schemas)
        case changes.AddColumn():
            return tables.add_column(one, schemas)
        case changes.RenameColumn():
            return tables.rename_column(one, schemas)
        case changes.RemoveColumn():
            return tables.remove_column(one, schemas)
        case changes.RestoreColumn():
            return tables.restore_column(one, schemas)
        case changes.WidenColumn():
            return tables.widen_column(one, schemas)
        case changes.RetypeColumn():
            return retype.retype_column(one, schemas)
        case changes.AbandonFilling():
            return retype.abandon_filling(one, schemas)
        case changes.SetRequired():
            return constraints.set_required(one, schemas)
        case changes.DropRequired():
            return constraints.drop_required(one, schemas)
        case changes.SetDefault():
            return constraints.set_default(one, schemas)
        case changes.DropDefault():
            return constraints.drop_default(one, schemas)
        case changes.AddCheck():
            return constraints.add_check(one, schemas)
        case changes.DropCheck():
            return constraints.drop_check(one, schemas)
        case changes.ValidateCheck():
            return constraints.validate_check(one, schemas)
        case changes.AddIndex():
            return constraints.add_index(one, schemas)
        case changes.DropIndex():
            return constraints.drop_index(one, schemas)
        case changes.AddForeignKey():
            return constraints.add_foreign_key(one, schemas)
        case changes.DropForeignKey():
            return constraints.drop_foreign_key(one, schemas)
        case changes.ValidateForeignKey():
            return constraints.validate_foreign_key(one, schemas)
        case changes.RenameObject():
            return constraints.rename_object(one, schemas)
        case changes.CreateView():
            return tables.create_view(one, schemas)
        case changes.DropView():
            return tables.drop_view(one, schemas)
        case changes.ChangeDefinition():
            return iter(())
        case changes.FinishEntity():
            return metadata.finish_entity(one, schemas)
        case changes.ChangeProject():
            return metadata.change_project(one, schemas)
        case changes.GrantPermission():
            return metadata.grant_permission(one, schemas)
        case changes.RevokePermission():
            return metadata.revoke_permission(one, schemas)
        case changes.AddWebhook() | changes.ChangeWebhook():
            return metadata.save_webhook(one, schemas)
        case changes.RemoveWebhook():
            return metadata.remove_webhook(one, schemas)
        case changes.ApplySeed():
            return seeds.apply_seed(one, schemas)
        case _:
            assert_never(one)
