"""A 30 s clip of 1080p H.264 to resized frames: seek-and-sample against decoding it whole. Knows no model."""

import argparse
import io
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import av
import numpy as np
from PIL import Image

from configs.serve import MediaConfig
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FrameSampling, FrameSize, sample_frames
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import VideoInfo, probe

WIDTH, HEIGHT, RATE, SECONDS = 1920, 1080, 30, 30
RATES = (0.5, 1.0, 2.0)  # frames looked at per second
ROUNDS = 3
CAPS = MediaConfig()
# A phone's: one slice, a key frame a second, no frames out of order; the web's: x264's own defaults.
ENCODERS = {
    "phone (key frame every 1 s, no b-frames)": {"g": "30", "bf": "0", "sc_threshold": "0"},
    "web (key frame every 8.3 s, 3 b-frames)": {"g": "250", "bf": "3"},
}


def clip(name: str, folder: Path) -> bytes:
    """The clip of that encoder: a textured picture that moves; made once and kept in `folder`."""
    kind = name.split()[0]
    path = folder / f"video-{kind}-{WIDTH}x{HEIGHT}-{SECONDS}s.mp4"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (160, 340, 3), dtype=np.uint8)
        scene = np.asarray(Image.fromarray(coarse).resize((WIDTH + 900, HEIGHT + 300), Image.Resampling.BICUBIC))
        with av.open(str(part), "w", format="mp4") as output:
            options = {"preset": "veryfast", "crf": "23", "x264-params": "slices=1:sliced-threads=0"}
            stream = output.add_stream("libx264", rate=RATE, options={**options, **ENCODERS[name]})
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            for i in range(RATE * SECONDS):
                y, x = (i // 3) % 300, i % 900
                picture = np.ascontiguousarray(scene[y : y + HEIGHT, x : x + WIDTH])
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            output.mux(stream.encode())
        part.rename(path)
    return path.read_bytes()


def plan(info: VideoInfo, fps: float) -> tuple[FrameSampling, tuple[int, int]]:
    """Which frames, and (height, width) of each."""
    sampling = sample_frames(info.n_frames, info.fps, MediaOptions(fps=fps), CAPS)
    n = len(sampling.indices)
    return sampling, FrameSize(height=info.height, width=info.width, n=n, options=MediaOptions(), limits=CAPS).find()


def by_sampling(data: bytes, fps: float) -> np.ndarray:
    """What the server does, from the bytes on: packets, the choice of frames, the way to them, resizing."""
    info = probe(data, CAPS)
    sampling, size = plan(info, fps)
    return read_frames(data, info, sampling.indices, size, CAPS)[0]


def by_decoding_whole(data: bytes, sampling: FrameSampling, size: tuple[int, int]) -> np.ndarray:
    """Every frame is decoded, in threads; only the wanted ones are turned to RGB and resized, in the same way."""
    height, width = size
    wanted = set(sampling.indices)
    pictures = []
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
                pictures.append(np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC)))
    return np.stack(pictures)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "pixelferry-bench")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(f"{WIDTH} x {HEIGHT}, {SECONDS} s at {RATE}, {os.cpu_count()} cores, medians of {arguments.rounds} rounds")
    for name in ENCODERS:
        data = clip(name, arguments.folder)
        print(f"\n{name}, {len(data) / 1e6:.1f} MB; packets and one frame: {seconds(partial(probe, data, CAPS)):.3f} s")
        for fps in RATES:
            sampling, size = plan(probe(data, CAPS), fps)
            ours, whole = by_sampling(data, fps), by_decoding_whole(data, sampling, size)
            if not np.array_equal(ours, whole):
                raise SystemExit(f"at {fps} frames a second the two differ")
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(arguments.rounds):
                times[0].append(seconds(partial(by_sampling, data, fps)))
                times[1].append(seconds(partial(by_decoding_whole, data, sampling, size)))
            sampled, all_of_it = statistics.median(times[0]), statistics.median(times[1])
            print(
                f"  {fps:3.1f} a second: {len(ours):3d} frames of {ours.shape[2]} x {ours.shape[1]}: sampled"
                f" {sampled:.2f} s, whole {all_of_it:.2f} s, ratio {sampled / all_of_it:.2f}"
            )


if __name__ == "__main__":
    main()
