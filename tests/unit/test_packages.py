"""Packages as files: what is exported, that it is a repository, and what archives are refused for."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mdm_gitops.errors import Conflict, MdmError, NotFound
from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree
from mdm_gitops.source.package_merge import MergeOptions, merge_package
from mdm_gitops.source.package_reader import MANIFEST, Package, read_package
from mdm_gitops.source.package_writer import Selection, export_package, zip_pieces
from mdm_gitops.source.tree import FolderTree

HUB = Path(__file__).parents[2] / "examples/customer-hub"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
COMMIT = "ab" * 20
EVERYTHING = Selection(permissions=True, webhooks=True, seeds=True)


@cache
def hub() -> tuple[Mapping[str, bytes], Definitions]:
    tree = FolderTree(HUB)
    files = {entry.path: tree.read(entry.path) for entry in tree.entries()}
    return files, read_tree(files, commit=COMMIT)


@cache
def packed(selection: Selection = EVERYTHING) -> bytes:
    return fresh(selection)


def fresh(selection: Selection) -> bytes:
    files, definitions = hub()
    made = export_package(files, definitions, selection, exported_at=NOON, exported_by="user:ana")
    return b"".join(zip_pieces(made))


def names_in(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


# --- exporting --------------------------------------------------------------------------------------


def test_a_package_is_the_repository_it_was_made_from() -> None:
    files, definitions = hub()
    data = packed()
    package, again = whole()
    assert package.files == {path: files[path] for path in package.files}
    assert again.content_hash == definitions.content_hash
    assert names_in(data)[:2] == [MANIFEST, "mdm.yaml"]
    manifest = package.manifest
    assert (manifest.exported_utc, manifest.exported_by) == ("2026-03-01T12:00:00Z", "user:ana")
    assert (manifest.source_commit, manifest.version) == (COMMIT, "1.0.0+abababababab")
    order = [entity.name for entity in manifest.entities]
    assert order.index("product_category") < order.index("product")
    assert order.index("customer") < order.index("customer_address")
    rows = {entity.name: entity.rows for entity in manifest.entities}
    assert rows["product"] == len(json.loads(files["seed/product.json"]))


def test_the_same_files_are_the_same_bytes() -> None:
    assert packed() == fresh(EVERYTHING)
    assert packed() != packed(Selection(permissions=True, webhooks=True))


def test_a_part_holds_what_it_needs_and_says_nothing_of_the_rest() -> None:
    data = packed(Selection(entities=("PRODUCT",), permissions=True, webhooks=True, seeds=True))
    package = read_package(io.BytesIO(data))
    assert [entity.name for entity in package.manifest.entities] == ["product_category", "product"]
    definitions = package.definitions()  # closed: every reference has its target
    assert set(definitions.entities) == {"product", "product_category"}
    assert {domain.name for domain in definitions.project.domains} == {"product"}
    assert {grant.domain for grant in definitions.grants} <= {"product"}
    assert set(definitions.seeds) == {"product", "product_category"}
    alone = packed(Selection(entities=("product",), dependencies=False))
    assert [e.name for e in read_package(io.BytesIO(alone)).manifest.entities] == ["product"]
    assert [name for name in names_in(alone) if name.startswith(("perm", "web", "seed"))] == []
    with pytest.raises(NotFound) as caught:
        packed(Selection(entities=("produkt",)))
    assert caught.value.kind_code == "ENTITY_NOT_FOUND" and "product" in caught.value.hint


# --- merging ----------------------------------------------------------------------------------------

HERE = {
    "mdm.yaml": b"# ours\nname: here\napiVersion: mdm-gitops/v1\ndomains:\n  - name: hr # people\n",
    "permissions.yaml": b"permissions:\n  - {users: [root], domains: [hr], actions: [admin]}\n",
}
TAKE_ALL = MergeOptions(permissions=True, webhooks=True, seeds=True)


@cache
def whole() -> tuple[Package, Definitions]:
    package = read_package(io.BytesIO(packed()))
    return package, package.definitions()


def merged(files: Mapping[str, bytes], options: MergeOptions) -> dict[str, bytes]:
    changes = merge_package(files, whole()[0], options)
    return {path: data for path, data in {**files, **changes}.items() if data is not None}


def test_a_package_is_added_to_what_is_there() -> None:
    after = merged(HERE, TAKE_ALL)
    assert after["mdm.yaml"].startswith(HERE["mdm.yaml"])
    assert after["permissions.yaml"].startswith(HERE["permissions.yaml"])
    definitions, (_, given) = read_tree(after), hub()
    assert definitions.entities == given.entities and definitions.seeds == given.seeds
    assert set(definitions.grants) > set(given.grants)
    assert definitions.project.name == "here"
    assert merged(after, TAKE_ALL) == after  # once more is nothing more


def test_what_differs_is_named_and_replaced_on_demand() -> None:
    after = merged(HERE, TAKE_ALL)
    path = next(path for path in after if path.endswith("/product.yaml"))
    mine = {**after, path: after[path] + b"# a comment is no difference\n"}
    assert merged(mine, TAKE_ALL) == mine
    mine[path] = mine[path].replace(b"displayName: Product", b"displayName: Goods")
    mine["seed/product.json"] = b"[]"
    with pytest.raises(Conflict) as caught:
        merged(mine, TAKE_ALL)
    assert caught.value.kind_code == "PACKAGE_CONFLICT"
    assert caught.value.details["conflicts"] == ["entity product", "seed of product"]
    forced = MergeOptions(permissions=True, webhooks=True, seeds=True, overwrite=True)
    assert merged(mine, forced) == after
    assert "seed/product.json" not in merged(HERE, MergeOptions())


# --- archives of strangers --------------------------------------------------------------------------


def archive(*entries: tuple[str | zipfile.ZipInfo, bytes], plain: bool = False) -> bytes:
    out = io.BytesIO()
    method = zipfile.ZIP_STORED if plain else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in entries:
            made.writestr(name, data)
    return out.getvalue()


def info(name: str, **values: Any) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    for key, value in values.items():
        setattr(made, key, value)
    return made


def link(kind: int) -> zipfile.ZipInfo:
    return info("entities/a.yaml", external_attr=(kind | 0o777) << 16, create_system=3)


def altered(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def directory_field(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Overwrite a field of the first entry of the directory."""
    at = data.index(b"PK\x01\x02") + offset
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def twice() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate"):
        return archive(("mdm.yaml", b"a"), ("mdm.yaml", b"b"))


def overlapping() -> bytes:
    """Two entries of the directory that show to the same bytes."""
    data = archive(("entities/a.yaml", b"x"), ("entities/b.yaml", b"y"), plain=True)
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1) + 42
    return data[:at] + struct.pack("<L", 0) + data[at + 4 :]


ZEROS = b"0" * (3 * 1024 * 1024)
REFUSED: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "no archive": (lambda: b"name: a\n" * 50, "PACKAGE_UNREADABLE", "damaged"),
    "nothing": (lambda: b"", "PACKAGE_UNREADABLE", "damaged"),
    "cut off": (lambda: packed()[:-30], "PACKAGE_UNREADABLE", "damaged"),
    "traversal": (lambda: archive(("entities/../../a.yaml", b"")), "PACKAGE_UNSAFE", "traversal"),
    "traversal of another system": (
        lambda: archive(("entities\\..\\a.yaml", b"")),
        "PACKAGE_UNSAFE",
        "traversal",
    ),
    "absolute": (lambda: archive(("/etc/a.yaml", b"")), "PACKAGE_UNSAFE", "absolute"),
    "with a drive": (lambda: archive(("C:/a.yaml", b"")), "PACKAGE_UNSAFE", "absolute"),
    "empty part": (lambda: archive(("entities//a.yaml", b"")), "PACKAGE_UNSAFE", "path"),
    "sign in the path": (lambda: archive(("entities/\x1b.yaml", b"")), "PACKAGE_UNSAFE", "path"),
    "NUL in the path": (
        lambda: altered(archive(("entities/aXb.yaml", b"")), b"aXb", b"a\x00b"),
        "PACKAGE_UNSAFE",
        "path",
    ),
    "link": (lambda: archive((link(stat.S_IFLNK), b"/etc/passwd")), "PACKAGE_UNSAFE", "link"),
    "pipe": (lambda: archive((link(stat.S_IFIFO), b"")), "PACKAGE_UNSAFE", "kind"),
    "twice": (twice, "PACKAGE_UNSAFE", "duplicate"),
    "by case": (
        lambda: archive(("entities/a.yaml", b""), ("Entities/A.yaml", b"")),
        "PACKAGE_UNSAFE",
        "collision",
    ),
    "by accents": (
        lambda: archive(("seed/\u00e9.json", b""), ("seed/e\u0301.json", b"")),
        "PACKAGE_UNSAFE",
        "collision",
    ),
    "nested": (lambda: archive(("seed/a.zip", archive())), "PACKAGE_UNSAFE", "nested"),
    "overlapping": (overlapping, "PACKAGE_UNSAFE", "overlap"),
    "encrypted": (
        lambda: directory_field(archive(("mdm.yaml", b"x")), 8, "<H", 1),
        "PACKAGE_UNREADABLE",
        "encrypted",
    ),
    "packed otherwise": (
        lambda: directory_field(archive(("mdm.yaml", b"x")), 10, "<H", zipfile.ZIP_LZMA),
        "PACKAGE_UNREADABLE",
        "method",
    ),
    "bomb": (lambda: archive(("seed/a.json", ZEROS)), "PACKAGE_TOO_LARGE", "ratio"),
    "large YAML": (
        lambda: archive(("entities/a.yaml", ZEROS), plain=True),
        "PACKAGE_TOO_LARGE",
        "size",
    ),
    "many": (
        lambda: archive(*((f"entities/{n}.yaml", b"") for n in range(20_001))),
        "PACKAGE_TOO_LARGE",
        "count",
    ),
    "many by its end": (
        lambda: altered(
            archive(("mdm.yaml", b"")),
            struct.pack("<4s4H", b"PK\x05\x06", 0, 0, 1, 1),
            struct.pack("<4s4H", b"PK\x05\x06", 0, 0, 65_535, 65_535),
        ),
        "PACKAGE_TOO_LARGE",
        "count",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_archives_that_are_refused(case: str) -> None:
    make, code, reason = REFUSED[case]
    with pytest.raises(MdmError) as caught:
        read_package(io.BytesIO(make()))
    assert (caught.value.kind_code, caught.value.details["reason"]) == (code, reason)


def with_manifest(
    files: Mapping[str, bytes], change: Callable[[dict[str, Any]], Any] = lambda m: None
) -> bytes:
    manifest: dict[str, Any] = {
        "formatVersion": 1,
        "name": "p",
        "version": "1",
        "exportedUtc": "",
        "exportedBy": "",
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
        "entities": [
            {"name": Path(path).stem, "version": "1", "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in files.items()
            if path.startswith("entities/")
        ],
    }
    change(manifest)
    return archive((MANIFEST, json.dumps(manifest).encode()), *files.items())


SMALL = {
    "mdm.yaml": b"name: a\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "entities/a.yaml": b"name: a\ndomain: ref\ncolumns: [{name: c, dataType: int}]\n",
    "README.md": b"not read, and proven all the same\n",
}


def test_a_sound_package_by_hand() -> None:
    package = read_package(io.BytesIO(with_manifest(SMALL)))
    assert set(package.definitions().entities) == {"a"} and "README.md" not in package.files


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m.update(formatVersion=2), "PACKAGE_MANIFEST_INVALID"),
        (lambda m: m.update(color=1), "PACKAGE_MANIFEST_INVALID"),
        (lambda m: m.pop("name"), "PACKAGE_MANIFEST_INVALID"),
        (lambda m: m["files"].update({"mdm.yaml": "0" * 64}), "PACKAGE_CHECKSUM"),
        (lambda m: m["files"].update({"more.yaml": "0" * 64}), "PACKAGE_CHECKSUM"),
        (lambda m: m["files"].pop("README.md"), "PACKAGE_CHECKSUM"),
        (lambda m: m["entities"].clear(), "PACKAGE_MANIFEST_INVALID"),
        (lambda m: m["entities"][0].update(sha256="0" * 64), "PACKAGE_MANIFEST_INVALID"),
        (lambda m: m["entities"].append(m["entities"][0]), "PACKAGE_MANIFEST_INVALID"),
    ],
)
def test_what_the_manifest_must_say(change: Callable[[dict[str, Any]], Any], code: str) -> None:
    with pytest.raises(MdmError) as caught:
        read_package(io.BytesIO(with_manifest(SMALL, change)))
    assert caught.value.kind_code == code


@pytest.mark.parametrize("extra", [None, "other-package.json"])
def test_there_is_one_manifest(extra: str | None) -> None:
    given = [(MANIFEST, b"{}"), (extra, b"{}")] if extra else [("mdm.yaml", SMALL["mdm.yaml"])]
    with pytest.raises(MdmError) as caught:
        read_package(io.BytesIO(archive(*given)))
    assert caught.value.kind_code == "PACKAGE_MANIFEST_INVALID"


def test_a_size_that_is_a_lie_is_found_while_reading() -> None:
    data = with_manifest(SMALL)
    at = data.index(b"PK\x01\x02")  # the manifest's entry: its unpacked size
    for size in (1, 10_000):
        lie = data[: at + 24] + struct.pack("<L", size) + data[at + 28 :]
        with pytest.raises(MdmError) as caught:
            read_package(io.BytesIO(lie))
        assert caught.value.kind_code in ("PACKAGE_UNREADABLE", "PACKAGE_UNSAFE")


@cache
def small() -> Package:
    return read_package(io.BytesIO(packed(Selection(entities=("sales_region",)))))


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_an_error_of_ours(seed: int) -> None:
    """Whatever byte is turned over: the package is refused, or is the same as before."""
    data = bytearray(packed(Selection(entities=("sales_region",))))
    before = small().files
    at = (seed * 7919) % len(data)
    data[at] ^= 1 << seed % 8
    try:
        found = read_package(io.BytesIO(bytes(data)))
    except MdmError as error:
        assert error.kind_code.startswith("PACKAGE_")
    else:
        assert found.files == before
