"""Starts of tiny checkpoints with absurd values, one after the other: `SEED COUNT DIRECTORY ...`; count 0: all.

A directory has the name of its family. Who writes it asks transformers for shapes, which would take seconds here.

Each ends as a CheckpointError or works. What does otherwise is printed, a line of JSON each. The process is bounded:
more memory than a start may take is a MemoryError here, and more time a signal.
"""

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import EngineConfig, MediaConfig, ModelConfig, ServeConfig
from model.device import DeviceError
from model.engine.loop import load
from model.engine.messages import StartEngine
from model.registry import family_of
from server.requests.model_card import read_model_card
from server.requests.unapplied import NOT_APPLIED
from tokenization.template_proof import prove_placeholders
from tokenization.worker_memory import private_bytes

BYTES = 1 << 30  # beyond what the process has, with torch and a good start behind it
SECONDS = 20

NESTED: Any = []
for _ in range(400):
    NESTED = [NESTED]
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 3, 7, 2**16, 2**31, 10**12, 10**400, -(10**400), 1e-320, 1e308, -1e308, float("nan"), float("inf"), 1.5,
    True, "7", "x" * 10**6, [], [0], [10**400] * 3, {}, {"a": 1}, NESTED,
)  # fmt: skip
Place = tuple[str, str]  # (location, key)


def start(path: Path) -> None:
    """What a server, a worker and an engine do with a directory. Raises CheckpointError."""
    engine = EngineConfig(device="cpu", max_seqs=2, max_batched_tokens=256, block_size=16, kv_cache_bytes=1 << 22)
    media = MediaConfig(max_pixels=56 * 56, max_video_pixels=8 * 56 * 56, max_frames=8, max_audio_seconds=2)
    config = ServeConfig(model=ModelConfig(path=path, served_name="tiny"), engine=engine, media=media)
    card = read_model_card(config)
    checkpoint = Checkpoint(path)
    prove_placeholders(family_of(checkpoint).processor(checkpoint, media.max_pixels))
    message = StartEngine(
        checkpoint=str(path), engine=engine, shm_root="/nowhere", max_model_len=card.max_model_len, largest=card.largest
    )
    try:
        load(message)
    except DeviceError as error:
        raise CheckpointError(str(error)) from None


def places_of(path: Path) -> list[Place]:
    """Every key that is read of a good directory."""
    found: dict[Place, None] = {}
    real_read, real_expect = ConfigSection.read, ConfigSection.expect

    def read(self: ConfigSection, kind: Any, key: str, *rest: Any, **more: Any) -> Any:
        found[self.location, key] = None
        return real_read(self, kind, key, *rest, **more)

    def expect(self: ConfigSection, key: str, *rest: Any, **more: Any) -> None:
        found[self.location, key] = None
        real_expect(self, key, *rest, **more)

    ConfigSection.read, ConfigSection.expect = read, expect  # type: ignore[method-assign]
    try:
        start(path)
    finally:
        ConfigSection.read, ConfigSection.expect = real_read, real_expect  # type: ignore[method-assign]
    warned = [place for place in found if place[1] in NOT_APPLIED][2:]  # all but two: they are told, and no more
    return [place for place in found if not place[0].startswith("tokenizer.json") and place not in warned]


def planted(path: Path, place: Place, value: Any) -> None:
    location, key = place
    name, *sections = location.split(": ")
    file = path / name
    document = json.loads(file.read_text()) if file.exists() else {}
    inner = document
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    file.write_text(json.dumps(document))


def cases(places: list[Place], seed: int, count: int) -> Iterator[tuple[Place, Any]]:
    every = [(place, value) for place in places for value in VALUES]
    yield from every if not count else random.Random(seed).sample(every, min(count, len(every)))


def too_slow(*_: Any) -> None:
    raise TimeoutError


def main(good: Path, seed: int, count: int) -> None:
    n, refused, name = 0, 0, good.name
    with tempfile.TemporaryDirectory() as found:
        places = places_of(good)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (private_bytes() + BYTES, hard))
        for place, value in cases(places, seed, count):
            path = Path(found) / "bad"
            shutil.copytree(good, path)
            planted(path, place, value)
            n += 1
            signal.alarm(SECONDS)
            try:
                start(path)
            except CheckpointError as error:
                refused += 1
                said = str(error)
                wrong = None if len(said) < 1100 and "\n" not in said else f"a message of {len(said)} characters"
            except Exception as error:  # noqa: BLE001 - what must not be
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            else:
                wrong = None
            signal.alarm(0)
            if wrong:
                print(json.dumps({"family": name, "at": place, "value": repr(value)[:60], "wrong": wrong}), flush=True)
            shutil.rmtree(path)
    print(f"{name}: {n} starts of {len(places)} keys, {refused} refused", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, too_slow)
    for directory in sys.argv[3:]:
        main(Path(directory), int(sys.argv[1]), int(sys.argv[2]))
