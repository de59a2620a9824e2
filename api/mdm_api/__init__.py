"""The REST API: Starlette on top of the toolkit. No SQL and no business rule lives here."""
