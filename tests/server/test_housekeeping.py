"""What housekeeping meets is said once, and nothing of it ends the server."""

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from server import housekeeping
from server.housekeeping import MOST_LINES, Housekeeping
from server.metrics import Metrics
from server.requests.segments import Segments
from shm import Owner, Pool
from tests.server.doubles import until


def play(root: Path, scenario: Callable[[Housekeeping, Segments, Owner], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        owner = Owner.claim(root)
        segments = Segments(Pool(owner, 1 << 20))
        try:
            await scenario(Housekeeping(root, segments, Metrics("tiny", "1")), segments, owner)
        finally:
            segments.close()
            owner.close()

    asyncio.run(run())


def gone(segments: Segments) -> bool:
    """As it is now."""
    return segments.gone


def test_a_removed_directory_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "shm"

    async def scenario(house: Housekeeping, segments: Segments, owner: Owner) -> None:
        shutil.rmtree(root)
        await house.once()
        assert not segments.gone and (root / f"{owner.name}.owner").exists()
        await house.once()

    play(root, scenario)
    assert caplog.text.count("removed under this server") == 1


def test_what_cannot_be_made_again_is_said_once_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "shm"

    async def scenario(house: Housekeeping, segments: Segments, owner: Owner) -> None:
        shutil.rmtree(root)
        root.write_text("somebody's own")
        for _ in range(3):
            await house.once()
            assert gone(segments)
        root.unlink()
        await segments.lease("one", [100])
        assert not gone(segments), "the first that can be lent says so"
        await segments.call(segments.pool.retire, "one")
        root.chmod(0o755)
        await house.once()
        assert gone(segments)
        root.chmod(0o700)
        await house.once()
        assert not gone(segments)
        await segments.call(segments.pool.settle, "one")

    play(root, scenario)
    assert caplog.text.count("shared memory cannot be used") == 2 and "is not a directory" in caplog.text


def test_odd_entries_have_a_line_each_and_one_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "shm"

    async def scenario(house: Housekeeping, segments: Segments, owner: Owner) -> None:
        (root / f"{1:016x}.owner").mkdir()
        await house.once()
        await house.once()
        assert caplog.text.count("is no owner file") == 1
        for i in range(2, MOST_LINES + 5):
            (root / f"{i:016x}.owner").mkdir()
        await house.once()
        assert caplog.text.count("is no owner file") == 1 + MOST_LINES
        for path in root.glob("00000000000000*.owner"):
            path.rmdir()

    play(root, scenario)


def test_a_machine_without_descriptors_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "shm"
    tries: list[int] = []

    def sweep(path: Path) -> Any:
        tries.append(1)
        raise OSError(24, "Too many open files")

    async def scenario(house: Housekeeping, segments: Segments, owner: Owner) -> None:
        task = asyncio.create_task(house.run())
        while len(tries) < 3:
            await asyncio.sleep(0.001)
        assert not task.done()
        task.cancel()

    monkeypatch.setattr(housekeeping, "sweep_in_parts", sweep)
    monkeypatch.setattr(housekeeping, "SWEEP_SECONDS", 0.001)
    play(root, scenario)
    assert "could not be looked after now: [Errno 24] Too many open files" in caplog.text


def test_dead_owners_are_swept_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "shm"

    async def scenario(house: Housekeeping, segments: Segments, owner: Owner) -> None:
        for _ in range(300):
            os.close(Owner.claim(root).fileno())
        with caplog.at_level("INFO", "pixelferry"):
            await house.once()
        assert os.listdir(root) == [f"{owner.name}.owner"]

    play(root, scenario)
    assert "swept 300 dead owners: 0 segments, 0 bytes" in caplog.text


def test_freed_pages_go_back_once_for_bodies_that_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[int] = []
    monkeypatch.setattr(housekeeping, "RETURN_SECONDS", 0.01)
    monkeypatch.setattr(housekeeping, "return_pages", lambda: returned.append(1))

    async def scenario() -> None:
        fell = housekeeping.PagesReturned()
        for n in (1, 2):
            for _ in range(3):
                fell()
            await until(lambda n=n: len(returned) == n)  # type: ignore[misc]
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert returned == [1, 1]
