"""A ZIP archive as a tree of files. Archives come from strangers, so everything that an archive can
say in two ways, or say wrongly, is refused before anything is unpacked.

Sizes are bounded three times: the directory before it is read, what it declares, and what comes out.
Nothing is ever written to disk.
"""

from __future__ import annotations

import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final, NoReturn

from mdm_gitops.errors import MdmError
from mdm_gitops.source.limits import (
    MAX_FILES,
    MAX_JSON_BYTES,
    MAX_PACKAGE_BYTES,
    MAX_PACKING_RATIO,
    MAX_UNPACKED_BYTES,
    MAX_YAML_BYTES,
)
from mdm_gitops.source.tree import Entry, is_of_interest, why_unusable_path

_END_SIGNATURE: Final = b"PK\x05\x06"
_END: Final = struct.Struct("<4s4H2LH")
_END_SEARCH: Final = _END.size + 65_535  # the comment may be so long
_HEADER_BYTES: Final = 30
_MAX_DIRECTORY_BYTES: Final = MAX_FILES * 400
_SMALL_BYTES: Final = 1024 * 1024  # no ratio makes a file of this size a bomb
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_NESTED: Final = (".zip", ".jar", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".zst", ".rar")


class ZipTree:
    """The files of the archive in *file*, which stays open as long as the tree is used.

    Raises:
        MdmError: the archive is not one (``PACKAGE_UNREADABLE``), too large (``PACKAGE_TOO_LARGE``),
            or made to do harm (``PACKAGE_UNSAFE``); *reason* is a stable word for which of it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        _check_end(file)
        try:
            self._archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OSError):
            raise _unreadable("the file is not a ZIP archive that can be read") from None
        self._infos = self._checked()

    @property
    def paths(self) -> tuple[str, ...]:
        """All files of the archive, those that are no definitions included."""
        return tuple(self._infos)

    def entries(self) -> Iterator[Entry]:
        for path, info in self._infos.items():
            if is_of_interest(path):
                yield Entry(path=path, size=info.file_size)

    def read(self, path: str) -> bytes:
        info = self._infos[path]
        try:
            with self._archive.open(info) as content:
                data = content.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError):
            raise _unreadable(f"{path} is damaged") from None
        if len(data) != info.file_size:
            _refuse("size", f"{path} is not as large as the archive says")
        return data

    # --- what is refused --------------------------------------------------------------------------

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        seen: dict[str, str] = {}
        total = 0
        for info in self._archive.infolist():
            _check_info(info)
            total += info.file_size
            if total > MAX_UNPACKED_BYTES:
                raise _too_large(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
            path = info.filename.removesuffix("/")
            _check_name_is_new(path, seen)
            if not info.is_dir():
                found[path] = info
        self._check_overlap()
        return found

    def _check_overlap(self) -> None:
        """Refuse archives whose files share bytes: so a small one unpacks to a huge one."""
        end = 0
        for info in sorted(self._archive.infolist(), key=lambda each: each.header_offset):
            if info.header_offset < end:
                _refuse("overlap", "files of the archive lie over each other")
            end = info.header_offset + _HEADER_BYTES + info.compress_size
        if end > self._archive.start_dir:
            _refuse("overlap", "files of the archive lie over its directory")


def _check_end(file: IO[bytes]) -> None:
    """Look at how large the directory says it is, before all of it is taken into memory."""
    size = file.seek(0, 2)
    if size > MAX_PACKAGE_BYTES:
        raise _too_large(f"it has more than {MAX_PACKAGE_BYTES:,} bytes")
    file.seek(max(0, size - _END_SEARCH))
    tail = file.read()
    at = tail.rfind(_END_SIGNATURE)
    if at < 0 or len(tail) - at < _END.size:
        raise _unreadable("the file is not a ZIP archive")
    _, disk, first_disk, here, count, directory, _, _ = _END.unpack_from(tail, at)
    if disk or first_disk or here != count:
        raise _unreadable("the archive is one of several parts")
    if count > MAX_FILES or directory > _MAX_DIRECTORY_BYTES:
        raise _too_large(f"it has more than {MAX_FILES:,} files", reason="count")


def _check_info(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    shown = ascii(name)[1:-1][:80]
    path = info.filename.removesuffix("/")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        _refuse("absolute", f"{shown} is an absolute path")
    if ".." in re.split(r"[/\\]", name):
        _refuse("traversal", f"{shown} leads out of the package")
    if "\x00" in name or why_unusable_path(path):
        _refuse("path", f"{shown} is no plain path")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        _refuse("link", f"{shown} is a symbolic link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and not info.is_dir()):
        _refuse("kind", f"{shown} is neither a file nor a folder")
    if info.flag_bits & _ENCRYPTED:
        raise _unreadable(f"{shown} is encrypted", reason="encrypted")
    if info.compress_type not in _METHODS:
        raise _unreadable(f"{shown} is packed in a way that is not read", reason="method")
    if info.is_dir() and info.file_size:
        _refuse("kind", f"{shown} is a folder with content")
    if path.lower().endswith(_NESTED):
        _refuse("nested", f"{shown} is an archive inside of the archive")
    _check_size(info, shown)


def _check_size(info: zipfile.ZipInfo, shown: str) -> None:
    limit = MAX_JSON_BYTES if info.filename.endswith(".json") else MAX_YAML_BYTES
    if info.file_size > limit:
        raise _too_large(f"{shown} unpacks to {info.file_size:,} bytes, {limit:,} are allowed")
    packed = max(info.compress_size, 1)
    if info.file_size > _SMALL_BYTES and info.file_size > packed * MAX_PACKING_RATIO:
        raise _too_large(
            f"{shown} unpacks to more than {MAX_PACKING_RATIO} times its size", reason="ratio"
        )


def _check_name_is_new(path: str, seen: dict[str, str]) -> None:
    key = unicodedata.normalize("NFC", path).casefold()
    other = seen.get(key)
    seen[key] = path
    if other is None:
        return
    if other == path:
        _refuse("duplicate", f"{path} is there twice")
    _refuse("collision", f"{path} and {other} are one file on some systems")


def _refuse(reason: str, message: str) -> NoReturn:
    raise MdmError(
        f"the package is refused: {message}",
        hint="export it again, or look where it comes from",
        code="PACKAGE_UNSAFE",
        reason=reason,
    )


def _unreadable(message: str, *, reason: str = "damaged") -> MdmError:
    return MdmError(message, code="PACKAGE_UNREADABLE", reason=reason)


def _too_large(message: str, *, reason: str = "size") -> MdmError:
    return MdmError(f"the package is too large: {message}", code="PACKAGE_TOO_LARGE", reason=reason)
