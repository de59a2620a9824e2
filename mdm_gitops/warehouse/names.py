"""The names of our two schemas, handed to everything that writes SQL."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas:
    config: str = "mdm"  # what has been deployed, and who may do what
    data: str = "mdm_data"  # the rows
