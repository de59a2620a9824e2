"""Keep what is needed of the present version of a common entity: ``keep_version.py currency``.

Run it before the definition or the rows change, then change them and raise ``version``. Where the present
version was installed, ``former/currency-1.0.0.json`` is what tells local changes from those of the newer one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mdm_gitops.source.common_entities import find_common


def main(names: list[str]) -> int:
    for name in names:
        common = find_common(name)
        version = common.entity.version
        present = common.version(version)
        assert present is not None, "the present version is always known"
        file = Path(__file__).parent / f"former/{common.id}-{version}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(present.written())
        sys.stderr.write(f"{file.name}: {len(present.rows)} rows\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
