"""JPEG to uint8 patches in shared memory, against transformers' PIL processor; one thread, the same malloc for both."""

import argparse
import io
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from configs.checkpoint import Checkpoint
from configs.serve import MIB, MediaConfig
from model.registry import family_of
from shm import Owner, Pool, default_root, read_segment, write_segment
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

GOAL = 0.65
SIZES = ((640, 480), (1280, 720), (1920, 1080))  # width, height
# glibc keeps large blocks: without this, both sides mostly measure page faults of fresh buffers.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two that are compared: a name, and what takes a JPEG's bytes."""

    name: str
    run: Callable[[bytes], None]


def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A JPEG of quality 88 with the spectrum of a photograph (1/f noise)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / max(width, height))
    planes = [
        np.fft.irfft2(np.fft.rfft2(rng.standard_normal((height, width))) * falling, s=(height, width)) for _ in "RGB"
    ]
    pixels = np.stack([128 + 45 * plane / plane.std() for plane in planes], axis=-1)
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


def ours(host: Processor, pool: Pool, root: Path, limits: MediaConfig) -> Callable[[bytes], None]:
    """What a worker does with one picture: header, lease, decode, resize, patches, write."""
    clock = StageClock()

    def run(data: bytes) -> None:
        source = Source(kind="image", param="inputs[0].image", data=data)
        measure = host.measure(source, limits)
        names = pool.lease("bench", [measure.nbytes])
        pixels = host.load(source, measure, limits, clock)
        write_segment(root, names[0], pixels)
        pool.give_back("bench", names)

    return run


def reference(processor: Qwen2VLImageProcessorPil) -> Callable[[bytes], None]:
    """What transformers does with one picture: decode, resize, rescale, normalize, float32 patches."""

    def run(data: bytes) -> None:
        processor(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="np")

    return run


def one_round(sides: list[Side], data: bytes, seconds: float) -> dict[str, float]:
    """Median milliseconds of each side; they take turns run by run, so that a busy neighbour slows all of them."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for side in sides:
        side.run(data)
    until = time.perf_counter() + seconds * len(sides)
    while len(times[sides[0].name]) < 5 or time.perf_counter() < until:
        for side in sides:
            begin = time.perf_counter()
            side.run(data)
            times[side.name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def check_equal(
    host: Processor, pool: Pool, root: Path, limits: MediaConfig, processor: Qwen2VLImageProcessorPil
) -> None:
    """Both sides must do the same work: what lies in shared memory are the reference's pixels. Raises ValueError."""
    data = picture(*SIZES[0])
    source = Source(kind="image", param="", data=data)
    measure = host.measure(source, limits)
    names = pool.lease("check", [measure.nbytes])
    write_segment(root, names[0], host.load(source, measure, limits, StageClock()))
    pixels = read_segment(root, names[0], measure.shape, np.uint8)
    pool.give_back("check", names)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    raw = processor(images=[image], do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    frames = np.asarray(raw).reshape(
        len(raw), 3, 2, -1
    )  # columns are (channel, frame, y, x); a still has two equal ones
    if not np.array_equal(pixels, frames[:, :, 0].reshape(len(raw), -1)):
        raise ValueError("the two sides do not make the same patches")


def compare(sides: list[Side], rounds: int, seconds: float) -> bool:
    """Medians of the rounds, one line per size. Whether every ratio reaches the goal."""
    print(f"{'size':>11} {'JPEG kB':>8}" + "".join(f"{side.name + ' ms':>18}" for side in sides) + f"{'ratio':>8}")
    reached = True
    for width, height in SIZES:
        data = picture(width, height)
        found = [one_round(sides, data, seconds) for _ in range(rounds)]
        medians = [statistics.median(times[side.name] for times in found) for side in sides]
        ratio = medians[0] / medians[-1]
        reached = reached and ratio <= GOAL
        cells = "".join(f"{median:>18.2f}" for median in medians)
        print(f"{width:>6}x{height:<4} {len(data) / 1e3:>8.0f}{cells}{ratio:>8.2f}", flush=True)
    print(f"goal: ours at most {GOAL} of transformers; {'reached' if reached else 'NOT reached'}")
    return reached


def main(argv: list[str]) -> int:
    """Print the table; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preprocess_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="per side, size and round")
    parser.add_argument(
        "--model", type=Path, help="whose preprocessor settings are taken (default: the published ones)"
    )
    given = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        return measure(given.model or write_qwen2_vl(Path(folder) / "tiny"), given.rounds, given.seconds)


def measure(model: Path, rounds: int, seconds: float) -> int:
    """Compare over the settings of a checkpoint; 1 when the goal is missed."""
    limits = MediaConfig()
    checkpoint = Checkpoint(model)
    host = family_of(checkpoint).processor(checkpoint, limits.max_pixels)
    processor = Qwen2VLImageProcessorPil.from_pretrained(model)
    owner = Owner.claim(default_root())
    try:
        pool = Pool(owner, 64 * MIB)
        check_equal(host, pool, owner.root, limits, processor)
        sides = [
            Side(name="ours", run=ours(host, pool, owner.root, limits)),
            Side(name="transformers", run=reference(processor)),
        ]
        return 0 if compare(sides, rounds, seconds) else 1
    finally:
        owner.close()


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **MALLOC, "OMP_NUM_THREADS": "1"}
        )
    sys.exit(main(sys.argv[1:]))
