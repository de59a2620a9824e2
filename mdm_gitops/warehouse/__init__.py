"""The live PostgreSQL: the server itself, connections to it, and what is done to its schemas.

This package is the lowest one that speaks to a database; nothing below it knows psycopg. It holds
no rule about what *should* be in the warehouse, that is decided in ``plan``.
"""
