"""Master data management with definitions in Git and data in PostgreSQL."""

from __future__ import annotations

__version__ = "0.1.0"
