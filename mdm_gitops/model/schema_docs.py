"""What editors show beside each key of a definition file: one sentence, and examples.

A table and nothing else. ``model.schema`` fails on a key that is missing here, so no key of the
model is ever without a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SUMMARIES: Final[Mapping[str, str]] = {
    "entity": "One kind of record: entities/<name>.yaml.",
    "permissions": "Who may do what: permissions.yaml.",
    "webhooks": "Who is told of changes: webhooks.yaml.",
    "project": "The project, its domains and its policy: mdm.yaml.",
    "access-tests": "What somebody must, and must not, see and do: access-tests.yaml.",
    "package": "What a package says about itself: mdm-package.json.",
    "seed": "Rows that come with the definitions: seed/<entity>.json.",
}

_TEXT: Final = {
    "displayName": "What people see instead of the name.",
    "description": "What it is, for people.",
}

DOCS: Final[Mapping[str, Mapping[str, str]]] = {
    "Entity": {
        **_TEXT,
        "name": "Name of the entity and of its table; also the name of this file.",
        "domain": "The domain of mdm.yaml that the entity belongs to.",
        "version": "Version of the definition, for people and packages (1.0.0).",
        "access": "Whether rights on the whole domain reach this entity.",
        "historyEnabled": "Keep each version of a row; needed for version restore and as-of reads.",
        "approvalRequired": "Changes wait for an approver before they reach the approved rows.",
        "allowSameAuthorApproval": "Let people approve their own changes.",
        "deletedRetentionDays": "Days after which soft-deleted rows are removed for good.",
        "keyColumns": "The business key: unique, used by seeds and as the default of upsert.",
        "sortColumns": "The order in which rows are listed when no other is asked for.",
        "displayRefColumn": "The column shown where another entity refers to a row of this one.",
        "uniqueConstraints": "Sets of columns that together are unique.",
        "aliases": "Other names by which people search for the entity.",
        "renamedFrom": "The name the entity had before; its data is kept.",
        "search": "Whether an index makes search fast, and which columns are searched.",
        "similarity": "How similar rows are found.",
        "survivorship": "Which values are kept when two rows are merged.",
        "lifecycle": "Protection of the entity.",
        "consumption": "SQL views of the approved rows for other systems.",
        "seed": "How the rows of seed/<entity>.json are written.",
        "columns": "The columns, in the order in which they are shown.",
    },
    "Column": {
        **_TEXT,
        "name": "Name of the column, unique in the entity without regard to case.",
        "dataType": "What the column holds.",
        "nullable": "Whether a row may leave it empty; `false` makes it required.",
        "unique": "No two rows have the same value.",
        "default": "The value of rows that give none.",
        "maxLength": "Longest text, in characters.",
        "precision": "All digits of a decimal.",
        "scale": "Digits of a decimal after the point.",
        "pattern": "Regular expression (RE2) that the whole text must match.",
        "minValue": "Smallest value.",
        "maxValue": "Largest value.",
        "allowedValues": "The only values that are allowed.",
        "reference": "The column holds the key of a row of another entity.",
        "classification": "How confidential it is; restricted values are masked.",
        "autocomplete": "Suggest values that other rows have.",
        "ui": "What a person sees who fills it in.",
        "renamedFrom": "The name the column had before; its data is kept.",
    },
    "Access": {"mode": "restricted: only rights on this very entity count."},
    "Reference": {
        "entity": "The entity that is referred to.",
        "column": "Its unique column whose value is held; default: its single key column.",
    },
    "ColumnUi": {"message": "Shown when the value breaks a rule of the column."},
    "SortColumn": {"column": "The column to sort by.", "direction": "Which end comes first."},
    "UniqueConstraint": {
        "name": "Name of the constraint.",
        "columns": "The columns that together are unique.",
    },
    "Search": {
        "enabled": "Keep an index for search; it makes each write of a searched column dearer.",
        "columns": "The columns that are searched (empty: all that hold text and are not restricted).",
    },
    "Similarity": {
        "enabled": "Whether similar rows can be asked for.",
        "topN": "How many are returned.",
        "minScore": "The least likeness, from 0 to 1, that counts.",
        "columns": "What is compared.",
    },
    "SimilarityColumn": {
        "name": "The column.",
        "weight": "How much it counts beside the others.",
        "matchMode": "How two of its values are compared.",
    },
    "Survivorship": {
        "rules": "Asked in this order for each column until one decides; none: the survivor's value.",
        "sources": "Where rows come from, for the rule trustedSource.",
        "columns": "Columns that have rules of their own.",
    },
    "SurvivorshipSources": {
        "column": "The text column that names a row's source.",
        "order": "The sources, the most trusted first; others come after all of these.",
    },
    "SurvivorshipColumn": {
        "name": "The column.",
        "rules": "Asked instead of the entity's.",
    },
    "Lifecycle": {"preventRemove": "Refuse every plan that would remove the entity."},
    "Consumption": {"views": "The views."},
    "ConsumptionView": {
        "schema": "SQL schema of the view; it is created when absent.",
        "name": "Name of the view.",
        "includeDeleted": "Show soft-deleted rows too.",
        "includeSystemColumns": "Show _sys_id, _sys_version and the like too.",
        "columns": "The columns; none named means all.",
    },
    "SeedOptions": {
        "mode": "create: add what is absent; upsert: also update rows that no person changed;"
        " enforce: overwrite those too.",
    },
    "Permissions": {"permissions": "Each item gives its users its actions."},
    "PermissionItem": {
        "users": "Principals: a user or group name, or user:, group:, apikey:, service: and a name.",
        "domains": 'Domains of mdm.yaml; "*" means all.',
        "entities": "Entities; empty means the whole domain.",
        "actions": "What they may do.",
        "rowFilterDsl": "Only rows for which this holds; needs entities.",
    },
    "AccessTests": {"tests": "Each holds one expectation of what somebody may."},
    "AccessTest": {
        "name": "A sentence that says what must hold; unique.",
        "principal": "Who asks: a user, or user:, service:, apikey: and a name; group: and a name"
        " is somebody who is only in that group.",
        "groups": "The groups that the user is in, as the identity provider names them.",
        "roles": "The roles that the identity provider gives; the admin role makes a Global Admin.",
        "entity": "The entity that is asked for.",
        "action": "What is tried.",
        "expect": "denied; allowed; or which rows are reached, and which columns are masked.",
    },
    "Expectation": {
        "rows": "Keys of exactly the rows that are reached.",
        "count": "How many rows are reached.",
        "all": "Every row is reached.",
        "includes": "Keys of rows that are reached.",
        "excludes": "Keys of rows that are not reached, or that there are none of.",
        "masked": "Columns whose values are shown as ***.",
        "visible": "Columns whose values are shown.",
    },
    "Webhooks": {"webhooks": "The subscriptions."},
    "Webhook": {
        "name": "A label for people, unique; the subscription is known by it.",
        "url": "Where events are sent by POST.",
        "domains": "Only events of these domains; empty means all.",
        "entities": "Only events of these entities; empty means all.",
        "actions": "Only these events; empty means all.",
        "description": "What it is for.",
        "is_active": "Nothing is sent while this is false.",
        "secretRef": "Environment variable or file that holds the secret of the signature.",
    },
    "Project": {
        "name": "Name of the project.",
        "apiVersion": "Version of the layout.",
        "description": "What the project is for.",
        "domains": "Groups of entities.",
        "policy": "What may be applied without a person looking at it.",
        "reconcile": "What the operator does by itself, and when.",
        "environments": "The places the definitions run in.",
    },
    "Domain": {**_TEXT, "name": "Name of the domain: letters, digits, _ and -."},
    "Policy": {
        "autoApply": "Classes of changes that the operator applies by itself.",
        "maxRemovedEntities": "Refuse a plan that removes more entities than this.",
        "maxRemovedPercent": "Refuse a plan that removes a larger share of all entities.",
        "allowances": "What these definitions allow beyond it, one thing each, for a while.",
    },
    "CommittedAllowance": {
        "allow": "A hazard, a class or an allowable refusal, and its subject, as `--allow` has it.",
        "until": "The last day on which it counts, in UTC.",
        "reason": "Why.",
    },
    "Reconcile": {
        "mode": "heal applies what the policy lets in; plan-only waits for a person; observe tells.",
        "overrides": "Entities of which less is done.",
        "windows": "When the operator may apply.",
    },
    "ModeOverride": {
        "entities": "Names of the entities.",
        "mode": "What is done for them; never more than for all.",
    },
    "SyncWindow": {
        "kind": "Whether the operator may apply in it, or must not.",
        "days": "Days on which it begins; empty means each.",
        "start": "Its first minute, HH:MM.",
        "end": "The minute after its last, HH:MM; not later than start: on the next day.",
        "timezone": "Name of the time zone (IANA).",
    },
    "Environment": {
        "name": "Name of the environment.",
        "description": "What it is for.",
        "databaseUrlRef": "Environment variable that holds the address of its database.",
        "policy": "Its own policy, instead of the project's.",
        "reconcile": "What the operator does there, instead of the project's.",
        "webhooks": "What webhooks have otherwise there.",
    },
    "WebhookOverlay": {
        "name": "Name of the webhook in webhooks.yaml.",
        "url": "Where its events go in this environment.",
        "secretRef": "Environment variable or file that holds the secret there.",
        "is_active": "Whether anything is sent there.",
    },
    "PackageManifest": {
        "formatVersion": "Version of this file's format.",
        "name": "Name of the package.",
        "version": "Version of the package.",
        "exportedUtc": "When it was exported (ISO 8601, UTC).",
        "exportedBy": "Who exported it.",
        "sourceCommit": "The commit it was exported from.",
        "toolVersion": "Version of the program that exported it.",
        "entities": "The entities inside.",
        "files": "SHA-256 of each other file, by its path.",
    },
    "PackagedEntity": {
        "name": "Name of the entity.",
        "version": "Version of its definition.",
        "sha256": "SHA-256 of its file.",
        "rows": "How many seed rows come with it.",
    },
}

EXAMPLES: Final[Mapping[tuple[str, str], list[Any]]] = {
    ("Entity", "name"): ["customer"],
    ("Entity", "domain"): ["sales"],
    ("Entity", "keyColumns"): [["code"]],
    ("Entity", "uniqueConstraints"): [[{"name": "one_name", "columns": ["country", "name"]}]],
    ("Column", "name"): ["country_code"],
    ("Column", "pattern"): ["[A-Z]{2}", "[^@ ]+@[^@ ]+"],
    ("Column", "allowedValues"): [["new", "active", "closed"]],
    ("Column", "reference"): [{"entity": "country"}],
    ("PermissionItem", "users"): [["alice@example.com", "group:data-stewards"]],
    ("PermissionItem", "rowFilterDsl"): ["[country] = 'CH'"],
    ("AccessTest", "principal"): ["alice@example.com", "group:sales-dach", "service:webshop"],
    ("Expectation", "includes"): [["CH", "AT"], [{"country": "CH", "code": "ZH"}]],
    ("Webhook", "url"): ["https://example.com/hooks/mdm"],
    ("Project", "domains"): [[{"name": "sales", "displayName": "Sales"}]],
    ("CommittedAllowance", "allow"): ["REMOVES_COLUMN:customer"],
    ("CommittedAllowance", "until"): ["2027-03-31"],
    ("SyncWindow", "timezone"): ["Europe/Zurich"],
    ("Environment", "databaseUrlRef"): ["PROD_DATABASE_URL"],
}
