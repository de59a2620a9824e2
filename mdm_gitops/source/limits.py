"""How much a definition file may hold. Reached only by a mistake or an attack, never by work."""

from __future__ import annotations

from typing import Final

MAX_YAML_BYTES: Final = 1024 * 1024
MAX_JSON_BYTES: Final = 64 * 1024 * 1024
MAX_TREE_BYTES: Final = 512 * 1024 * 1024  # of all files of a commit that are read
MAX_DEPTH: Final = 32
MAX_NODES: Final = 100_000
MAX_FILES: Final = 20_000
MAX_INTEGER_DIGITS: Final = 40
MAX_NUMBER_EXPONENT: Final = 1_000
MAX_FINDINGS_PER_FILE: Final = 100
MAX_PACKAGE_BYTES: Final = 256 * 1024 * 1024
MAX_UNPACKED_BYTES: Final = 1024 * 1024 * 1024
MAX_PACKING_RATIO: Final = 200
