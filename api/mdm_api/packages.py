"""``/api/v1/packages``: definitions as one archive, taken from here and deployed there.

A package is deployed as a whole or not at all: it is proven, merged, checked and planned before
anything is written; should the deployment still break off, its commit is taken back and its tables go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Final

import anyio.to_thread
from starlette.responses import Response

from mdm_api import bodies, schemas, uploads
from mdm_api.call import Call, json_response
from mdm_api.deployer import Group
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_api.streaming import Outlet, Streamed
from mdm_gitops.access import Tier
from mdm_gitops.errors import InputError, MdmError, PlanRefused
from mdm_gitops.model import Definitions, fold
from mdm_gitops.source.commits import Author, Committed, Files
from mdm_gitops.source.limits import MAX_PACKAGE_BYTES
from mdm_gitops.source.package_merge import MergeOptions, merge_package
from mdm_gitops.source.package_reader import Package, read_package
from mdm_gitops.source.package_writer import (
    Exported,
    Selection,
    export_package,
    in_order,
    zip_pieces,
)
from mdm_gitops.source.repository import read_tree

_ZIP: Final = "application/zip"
_MEMBERS: Final = (
    "entityNames",
    "autoIncludeDependencies",
    "includePermissions",
    "includeWebhooks",
    "includeSeed",
    "version",
)


# --- export -----------------------------------------------------------------------------------------


async def export(call: Call) -> Response:
    given = bodies.load_object(await call.body(), known=_MEMBERS, may_be_empty=True)
    selection, version = _selection(given), _text(given, "version")
    source = await call.services.definitions.files()
    actor = call.principal.actor
    moment = (source.committed_at or call.services.now()).astimezone(UTC)

    def make() -> Exported:
        definitions = read_tree(
            source.files, commit=source.commit, reserved_schemas=_reserved(call)
        )
        return export_package(
            source.files,
            definitions,
            selection,
            exported_at=moment,
            exported_by=actor,
            version=version,
        )

    exported = await anyio.to_thread.run_sync(make)
    name = f"{exported.manifest.name}-{exported.manifest.version}.zip"
    headers = {
        "Content-Type": _ZIP,
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{_file_name(name)}"',
    }

    async def send(outlet: Outlet) -> None:
        await outlet.send_all(_pieces(exported), headers)

    return Streamed(send)


async def _pieces(exported: Exported) -> AsyncIterator[bytes]:
    pieces = zip_pieces(exported)
    while True:
        piece = await anyio.to_thread.run_sync(next, pieces, None)
        if piece is None:
            return
        yield piece


def _selection(given: Mapping[str, Any]) -> Selection:
    names = given.get("entityNames")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("entityNames must be a list of texts", parameter="entityNames")
    return Selection(
        entities=tuple(names),
        dependencies=_flag(given, "autoIncludeDependencies", default=True),
        permissions=_flag(given, "includePermissions"),
        webhooks=_flag(given, "includeWebhooks"),
        seeds=_flag(given, "includeSeed"),
    )


def _flag(given: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false", parameter=name)
    return value


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 64:
        raise InputError(f"{name} must be a text of up to 64 characters", parameter=name)
    return value


def _file_name(name: str) -> str:
    return "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in "._+-") else "-" for sign in name
    )


def _reserved(call: Call) -> tuple[str, ...]:
    settings = call.services.settings
    return settings.ConfigSchema, settings.EntityDataSchema


# --- deploy -----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Log:
    """What was done, for the answer; an error takes it along."""

    steps: list[dict[str, Any]] = field(default_factory=list)

    def note(self, action: str, detail: str) -> None:
        self.steps.append({"step": len(self.steps) + 1, "action": action, "detail": detail})


async def deploy(call: Call) -> Response:
    async with uploads.received(call.request, name="file", max_bytes=MAX_PACKAGE_BYTES) as upload:
        given = _options(call, upload.fields)
        log = _Log()
        try:
            package = await anyio.to_thread.run_sync(read_package, upload.file)
            log.note("read", _contents(package))
            return await _Deployment(call, package, given, log).run()
        except MdmError as error:
            error.details.setdefault("log", log.steps)
            raise


class _Deployment:
    def __init__(
        self,
        call: Call,
        package: Package,
        given: Mapping[str, Any],
        log: _Log,
    ) -> None:
        self._call = call
        self._package = package
        self._given = given
        self._log = log
        self._options = MergeOptions(
            overwrite=given["overwriteExisting"],
            permissions=given["importPermissions"],
            webhooks=given["importWebhooks"],
            seeds=given["importSeed"],
        )

    async def run(self) -> Response:
        services = self._call.services
        wanted = await services.definitions.preview(self._change)
        self._log.note("check", f"{len(wanted.entities)} entities are valid together")
        self._refuse_targets(wanted)
        group = self._group(wanted)
        plan = await services.deployer.check_together(wanted, group)
        self._log.note("plan", f"{len(plan.changes)} changes, none of them refused")
        done = await self._commit()
        if done.branch is not None:
            self._log.note("push", f"branch {done.branch}; it is deployed once it is merged")
            return json_response(self._answer(done, []), status=202)
        wanted = replace(wanted, commit=done.commit or wanted.commit)
        try:
            applied = await services.deployer.deploy_together(wanted, group, actor=self._actor)
        except MdmError as error:
            await self._take_back(done, group)
            if error.kind_code != "PARTLY_APPLIED":
                raise
            raise PlanRefused(
                f"the package cannot be deployed: {error}",
                hint="nothing of it was left; correct the package and deploy it again",
            ) from None
        self._log.note("deploy", f"{applied['changes']} changes in {applied['steps']} steps")
        names = [wanted.entities[name].name for name in group.entities]
        return json_response({**self._answer(done, names), "deploymentId": applied["deploymentId"]})

    def _change(self, files: Mapping[str, bytes]) -> Files:
        return merge_package(files, self._package, self._options)

    def _group(self, wanted: Definitions) -> Group:
        names = in_order(wanted, {fold(entity.name) for entity in self._package.manifest.entities})
        state = self._call.state
        known = {*state.entities, *(entity.name for entity in state.removed)}
        given, with_project = self._package, state.project is None
        allow = tuple(text.strip() for text in self._given["allow"].split(",") if text.strip())
        return Group(
            entities=names,
            created=frozenset(names) - known,
            access=self._options.permissions or self._options.webhooks or with_project,
            allow=allow,
            grants=frozenset(given.grants()) if self._options.permissions else frozenset(),
            webhooks=frozenset(given.webhook_names()) if self._options.webhooks else frozenset(),
        )

    def _refuse_targets(self, wanted: Definitions) -> None:
        from mdm_gitops.deliver.targets import rules_of

        rules = rules_of(self._call.services.settings.Webhooks)
        for webhook in wanted.webhooks.webhooks if self._options.webhooks else ():
            refused = rules.why_refused(webhook.url)
            if refused:
                raise InputError(f"the url of webhook {webhook.name[:60]} {refused}")

    async def _commit(self) -> Committed:
        manifest = self._package.manifest
        done = await self._call.services.definitions.write(
            self._change, author=Author(actor=self._actor), message=self._message
        )
        self._log.note(
            "commit", f"{done.commit or 'nothing'} for {manifest.name} {manifest.version}"
        )
        return done

    async def _take_back(self, done: Committed, group: Group) -> None:
        """Leave nothing: neither the commit nor what was made of it."""
        services = self._call.services
        await services.definitions.take_back(
            done, author=Author(actor=self._actor), message=f"Take back: {self._message}"
        )
        self._log.note("take back", f"commit {done.commit}")
        await services.deployer.undo_together(group, actor=self._actor)
        self._log.note("take back", "what it had changed in the warehouse")

    @property
    def _message(self) -> str:
        manifest = self._package.manifest
        return f"Deploy package {manifest.name[:60]} {manifest.version[:60]}"

    @property
    def _actor(self) -> str:
        return self._call.principal.actor

    def _answer(self, done: Committed, names: list[str]) -> dict[str, Any]:
        return {
            "success": True,
            "deployedEntities": names,
            "commit": done.commit,
            "branch": done.branch,
            "deploymentId": None,
            "log": self._log.steps,
        }


def _contents(package: Package) -> str:
    manifest = package.manifest
    entities, rows = len(manifest.entities), sum(entity.rows for entity in manifest.entities)
    return (
        f"{manifest.name} {manifest.version} by {manifest.exported_by}: {entities} entities,"
        f" {rows} seed rows, {len(manifest.files)} files as the manifest says"
    )


def _options(call: Call, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the options, each from the query or from the form."""
    known = {parameter.name: parameter for parameter in _OPTIONS}
    given = dict(call.parameters)
    for name, text in fields.items():
        if name not in known:
            raise InputError(f"there is no option {name[:60]!r}", parameter=name[:60])
        if name in call.request.query_params:
            raise InputError(f"{name} is given in the query and in the form", parameter=name)
        given[name] = known[name].read(text) if text else known[name].default
    return given


def _option(name: str, description: str) -> Parameter:
    return Parameter(name=name, description=description, kind=Kind.FLAG, default=False)


_OPTIONS: Final = (
    _option("overwriteExisting", "Replace what is there and differs; without it that is refused."),
    _option("importPermissions", "Add the package's permissions to those that are there."),
    _option("importWebhooks", "Add the package's webhooks."),
    _option("importSeed", "Take the package's seed files, and write their rows."),
    Parameter(
        name="allow",
        description="What a person has to allow, as `REMOVES_COLUMN:customer`, separated by commas.",
        default="",
    ),
)
_FORM: Final = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "The package."},
        **{
            option.name: {"type": "boolean", "description": option.description}
            for option in _OPTIONS
            if option.kind is Kind.FLAG
        },
        "allow": {"type": "string"},
    },
}
_PACKAGE_ERRORS: Final = (
    "PACKAGE_UNREADABLE",
    "PACKAGE_UNSAFE",
    "PACKAGE_TOO_LARGE",
    "PACKAGE_MANIFEST_INVALID",
    "PACKAGE_CHECKSUM",
    "PACKAGE_CONFLICT",
)

operations = (
    Operation(
        method="POST",
        path="/api/v1/packages/export",
        handler=export,
        name="export_package",
        summary="Export definitions as a package",
        tag="Packages",
        access=Access.GLOBAL_ADMIN,
        tier=Tier.ENTERPRISE,
        description="A ZIP archive of the committed files: without `entityNames` of all entities, else"
        " of these and of all that they refer to. Secrets are never in it. The same commit gives the"
        " same bytes to the same caller.",
        body=Body(
            description="What to export.",
            schemas={JSON: schemas.ref("PackageExport")},
            required=False,
        ),
        answers={
            200: Answer(
                description="The package.",
                schema={"type": "string", "format": "binary"},
                media_type=_ZIP,
            )
        },
        errors=(
            "REQUEST_INVALID",
            "ENTITY_NOT_FOUND",
            "DEFINITION_INVALID",
            "DEFINITIONS_IN_GIT",
            "SOURCE_UNAVAILABLE",
        ),
    ),
    Operation(
        method="POST",
        path="/api/v1/packages/deploy",
        handler=deploy,
        name="deploy_package",
        summary="Deploy a package",
        tag="Packages",
        access=Access.GLOBAL_ADMIN,
        tier=Tier.ENTERPRISE,
        description="Commits the package's files as the caller's change and deploys its entities. All"
        " of it or nothing: a package that is refused, or whose deployment breaks off, leaves neither"
        " a commit nor a table. Options may stand in the query or in the form.",
        parameters=_OPTIONS,
        body=Body(description="The package.", schemas={"multipart/form-data": _FORM}),
        answers={
            200: Answer(description="Deployed.", schema=schemas.ref("PackageDeployed")),
            202: Answer(
                description="Pushed to a branch, deployed once it is merged.",
                schema=schemas.ref("PackageDeployed"),
            ),
        },
        errors=(
            *_PACKAGE_ERRORS,
            "MEDIA_TYPE_UNSUPPORTED",
            "DEFINITION_INVALID",
            "DEFINITIONS_IN_GIT",
            "DEFINITIONS_EDITED",
            "PUSH_REFUSED",
            "PLAN_REFUSED",
            "PLAN_STALE",
            "PARTLY_APPLIED",
            "WAREHOUSE_LOCKED",
            "SOURCE_UNAVAILABLE",
        ),
    ),
)
