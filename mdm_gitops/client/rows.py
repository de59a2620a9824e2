"""Rows of one entity: read, written, imported, exported, compared and merged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

from mdm_gitops.client.paths import path
from mdm_gitops.client.transport import Answer, Body, json_body
from mdm_gitops.client.values import ImportOutcome, Json, Page

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client

_XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_DATA: Final = "/entities/{entity}/data"


class Rows:
    """The rows of *entity* that the caller may see."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str = "", **names: Any) -> str:
        return path(_DATA + rest, entity=self._entity, **names)

    # --- reading ----------------------------------------------------------------------------------

    def list(
        self,
        *,
        filter: str | None = None,
        sort: str | None = None,
        fields: Sequence[str] = (),
        state: str | None = None,
        as_of_utc: str | None = None,
        expand: Sequence[str] = (),
        page_size: int = 500,
    ) -> AsyncIterator[Json]:
        """Yield all rows that pass, page by page from where the last one ended."""
        return self._client.pages(
            self._path(),
            take=page_size,
            filter=filter,
            sort=sort,
            fields=fields or None,
            state=state,
            asOfUtc=as_of_utc,
            expand=expand or None,
        )

    async def page(
        self,
        *,
        filter: str | None = None,
        sort: str | None = None,
        skip: int | None = None,
        take: int | None = None,
        after: str | None = None,
        count: bool = False,
        **more: Any,
    ) -> Page:
        """Return one page; *more* are other parameters of the list by their names in the API."""
        query = {
            "filter": filter,
            "sort": sort,
            "skip": skip,
            "take": take,
            "after": after,
            "count": count or None,
            **more,
        }
        return Page.of(await self._client.request("GET", self._path(), query=query))

    async def get(self, row_id: str, *, as_of_utc: str | None = None, **more: Any) -> Json:
        query = {"asOfUtc": as_of_utc, **more}
        found = await self._client.request("GET", self._path("/{id}", id=row_id), query=query)
        return dict(found)

    async def bounds(self) -> Json:
        """Return the moments that can be asked for with ``as_of_utc``."""
        return dict(await self._client.request("GET", self._path("/time-travel-bounds")))

    async def versions(self, row_id: str, *, skip: int = 0, take: int = 100) -> Page:
        where = path("/entities/{entity}/versions/{id}", entity=self._entity, id=row_id)
        query = {"skip": skip, "take": take}
        return Page.of(await self._client.request("GET", where, query=query))

    async def ref_options(
        self, column: str, q: str | None = None, *, take: int = 20
    ) -> tuple[Json, ...]:
        return await self._choices("/ref-options", column, q, take)

    async def suggestions(
        self, column: str, q: str | None = None, *, take: int = 20
    ) -> tuple[Json, ...]:
        return await self._choices("/column-suggestions", column, q, take)

    async def _choices(self, rest: str, column: str, q: str | None, take: int) -> tuple[Json, ...]:
        query = {"column": column, "q": q, "take": take}
        return tuple((await self._client.request("GET", self._path(rest), query=query))["options"])

    # --- writing ----------------------------------------------------------------------------------

    async def create(self, values: Mapping[str, Any]) -> Json:
        """Return the new row; where the entity needs approval the pending one."""
        return dict(await self._client.request("POST", self._path(), json=dict(values)))

    async def update(
        self, row_id: str, values: Mapping[str, Any], *, version: int | None = None
    ) -> Json:
        """Return the row as it is now; columns that are not given keep their values.

        With *version* only if the row is still that version: ``ROW_VERSION_CONFLICT`` else.
        """
        return dict(
            await self._client.request(
                "PUT",
                self._path("/{id}", id=row_id),
                json=dict(values),
                headers=_if_version(version),
            )
        )

    async def delete(
        self, row_id: str, *, soft: bool = True, version: int | None = None
    ) -> Json | None:
        """Delete the row: softly, or for good, after which there is nothing to return."""
        answer = await self._client.request(
            "DELETE",
            self._path("/{id}", id=row_id),
            query={"soft": soft},
            headers=_if_version(version),
        )
        return None if answer is None else dict(answer)

    async def restore(self, row_id: str) -> Json:
        return dict(await self._client.request("POST", self._path("/{id}/restore", id=row_id)))

    async def restore_version(self, row_id: str, version: int) -> Json:
        where = path("/entities/{entity}/versions/{id}/restore", entity=self._entity, id=row_id)
        return dict(await self._client.request("POST", where, json={"version": version}))

    # --- many at once -----------------------------------------------------------------------------

    async def import_rows(self, rows: Iterable[Mapping[str, Any]], **options: Any) -> ImportOutcome:
        """Import row objects; see ``import_body`` for *options*."""
        body, _ = json_body([dict(row) for row in rows])
        return await self.import_body("bulk", body, **options)

    async def import_csv(
        self, body: Body, *, sep: str | None = None, quote: str | None = None, **options: Any
    ) -> ImportOutcome:
        """Import CSV text whose first line names the columns; it is sent as it comes."""
        return await self.import_body("bulk-csv", body, sep=sep, quote=quote, **options)

    async def import_xlsx(self, body: Body, **options: Any) -> ImportOutcome:
        """Import the first sheet of a workbook."""
        return await self.import_body("bulk-xlsx", body, **options)

    async def import_body(self, kind: str, body: Body, **options: Any) -> ImportOutcome:
        """Import what *body* holds; *options* are those of ``import_answer``."""
        return ImportOutcome.of(await self.import_answer(kind, body, **options))

    async def import_answer(
        self,
        kind: str,
        body: Body,
        *,
        mode: str = "insert",
        key_columns: Sequence[str] = (),
        batch_name: str | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        charset: str = "utf-8",
        size: int | None = None,
        **dialect: Any,
    ) -> Json:
        """Return the answer to an import as it is.

        With *idempotency_key* an import whose body can be made anew is tried again.
        """
        media = {"bulk": "application/json", "bulk-xlsx": _XLSX}
        headers = {"Content-Type": media.get(kind, f"text/csv; charset={charset}")}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        if size is not None:
            headers["Content-Length"] = str(size)
        query = {
            "mode": mode,
            "keyColumns": key_columns or None,
            "batchName": batch_name,
            "dryRun": dry_run or None,
            **dialect,
        }
        return dict(
            await self._client.request(
                "POST",
                self._path(f"/{kind}"),
                query=query,
                body=body,
                headers=headers,
                is_long=True,
            )
        )

    def import_errors(self, errors_url: str) -> AbstractAsyncContextManager[Answer]:
        """Return a context with all errors of an import as CSV; *errors_url* is in its outcome."""
        return self._client.opened("GET", errors_url, is_long=True)

    def export(
        self, format: str = "csv", *, as_of_utc: str | None = None, **query: Any
    ) -> AbstractAsyncContextManager[Answer]:
        """Return a context with the rows as a file: csv, json or xlsx. *query* as of a list."""
        given = {**query, "format": format, "asOfUtc": as_of_utc}
        return self._client.opened("GET", self._path("/export"), query=given, is_long=True)


class Filters:
    """Saved filters of the caller."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, name: str | None = None) -> str:
        where = "/entities/{entity}/saved-filters"
        if name is None:
            return path(where, entity=self._entity)
        return path(where + "/{name}", entity=self._entity, name=name)

    async def list(self) -> list[Json]:
        return list((await self._client.request("GET", self._path()))["items"])

    async def get(self, name: str) -> Json:
        return dict(await self._client.request("GET", self._path(name)))

    async def save(
        self,
        name: str,
        *,
        filter: str = "",
        sort: str = "",
        columns: Sequence[str] = (),
        is_default: bool = False,
    ) -> Json:
        document = {
            "name": name,
            "filter": filter,
            "sort": sort,
            "columns": [*columns],
            "isDefault": is_default,
        }
        return dict(await self._client.request("POST", self._path(), json=document))

    async def delete(self, name: str) -> None:
        await self._client.request("DELETE", self._path(name))


def _if_version(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"v{version}"'}
