"""What makes the operator look: stamps that tell change from sameness, and the watching of folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mdm_operator.stamp import definition_folders, take_stamp
from mdm_operator.watch import watch
from tests.support.git import git

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "entities" / "core").mkdir(parents=True)
    (tmp_path / "mdm.yaml").write_text("name: x")
    (tmp_path / "entities" / "core" / "country.yaml").write_text("name: country")
    return tmp_path


def write_same_size(folder: Path) -> None:
    (folder / "mdm.yaml").write_text("name: y")


def replace_with_old_times(folder: Path) -> None:
    file = folder / "mdm.yaml"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    (folder / "new").write_text("name: z")
    os.utime(folder / "new", ns=times)
    (folder / "new").rename(file)


def add_an_entity(folder: Path) -> None:
    (folder / "entities" / "city.yaml").write_text("")


def remove_an_entity(folder: Path) -> None:
    (folder / "entities" / "core" / "country.yaml").unlink()


def move_an_entity(folder: Path) -> None:
    (folder / "entities" / "core" / "country.yaml").rename(folder / "entities" / "country.yaml")


def add_a_seed(folder: Path) -> None:
    (folder / "seed").mkdir()
    (folder / "seed" / "country.json").write_text("[]")


def add_a_misnamed_file(folder: Path) -> None:
    (folder / "mdm.yml").write_text("")


CHANGES = [
    write_same_size,
    replace_with_old_times,
    add_an_entity,
    remove_an_entity,
    move_an_entity,
    add_a_seed,
    add_a_misnamed_file,
]


@pytest.mark.parametrize("change", CHANGES)
def test_stamp_moves(folder: Path, change: Callable[[Path], None]) -> None:
    before = take_stamp(folder)
    assert take_stamp(folder) == before
    change(folder)
    assert take_stamp(folder) != before


def test_stamp_stays(folder: Path) -> None:
    before = take_stamp(folder)
    (folder / ".mdm").mkdir()
    (folder / "README.md").write_text("about")
    (folder / "entities" / ".country.yaml.swp").write_text("an editor's")
    assert take_stamp(folder) == before


def test_stamp_moves_with_the_commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    before = take_stamp(folder)
    git(folder, "commit", "--quiet", "--message", "one")
    first = take_stamp(folder)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "two")
    assert len({before, first, take_stamp(folder)}) == 3


def test_definition_folders(folder: Path) -> None:
    (folder / "entities" / ".hidden").mkdir()
    (folder / "docs").mkdir()
    found = [path.relative_to(folder).as_posix() for path in definition_folders(folder)]
    assert found == [".", "entities", "entities/core"]


class Bell:
    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.count = 0

    def ring(self) -> None:
        self.count += 1
        self.rung.set()

    async def heard(self) -> None:
        async with asyncio.timeout(10):
            await self.rung.wait()
        self.rung.clear()


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[Bell]:
    stop, bell = asyncio.Event(), Bell()
    task = asyncio.create_task(watch(folder, bell.ring, stop=stop))
    await asyncio.sleep(0.3)  # until the system watches; what is missed before is not looked for
    try:
        yield bell
    finally:
        stop.set()
        async with asyncio.timeout(10):
            await task


@pytest.mark.parametrize("change", CHANGES)
async def test_watch_hears(folder: Path, change: Callable[[Path], None]) -> None:
    async with watching(folder) as bell:
        change(folder)
        await bell.heard()


async def test_watch_hears_files_in_new_folders(folder: Path) -> None:
    async with watching(folder) as bell:
        (folder / "entities" / "more").mkdir()
        await bell.heard()
        await asyncio.sleep(0.3)
        bell.rung.clear()
        (folder / "entities" / "more" / "city.yaml").write_text("name: city")
        await bell.heard()


async def test_watch_hears_a_commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    async with watching(folder) as bell:
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "two")
        await bell.heard()


async def test_watch_is_deaf_to_everything_else(folder: Path) -> None:
    (folder / ".mdm" / "postgres").mkdir(parents=True)
    async with watching(folder) as bell:
        (folder / ".mdm" / "postgres" / "wal").write_text("x")
        (folder / "README.md").write_text("about")
        (folder / "entities" / ".country.yaml.swp").write_text("an editor's")
        await asyncio.sleep(0.8)
        assert bell.count == 0


async def test_watch_survives_the_loss_of_its_folder(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(watch(folder / "gone", lambda: None, stop=stop))
    await asyncio.sleep(0.3)
    assert not task.done()
    assert "cannot be watched" in caplog.text
    stop.set()
    async with asyncio.timeout(10):
        await task
