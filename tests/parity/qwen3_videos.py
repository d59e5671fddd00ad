"""Writes what transformers' whole processor of Qwen3-VL makes of videos to qwen3_videos.json: a script by itself.

The project's environment has no torchvision, which that processor wants. This one runs where there is one, with a
release of transformers: 5.23.0 and 4.57.6 lay the frames out in two ways. The directory is one that
`python -m tests.layouts.directories` wrote.

    PYTHONPATH=<torchvision, transformers> python tests/parity/qwen3_videos.py DIRECTORY
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

STORED = Path(__file__).with_name("qwen3_videos.json")
# Frames, frames a second, (height, width), words before it. The first four keep their size.
VIDEOS = [
    (8, 2.0, (64, 96), ""), (25, 10.0, (32, 64), "look:"), (40, 10.0, (64, 64), "a, b"), (30, 29.97, (96, 32), "x "),
    (120, 23.976, (75, 130), "two\n"), (300, 30.0, (40, 300), "12"), (7, 1.0, (170, 130), "?!"),
]  # fmt: skip


def frames_of(n: int, size: tuple[int, int]) -> Any:
    """uint8 [n, height, width, 3], the same for the same numbers."""
    return np.random.default_rng(n).integers(0, 256, (n, *size, 3), dtype=np.uint8)


def digest(patches: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(patches, np.uint8).tobytes()).hexdigest()


def main(directory: Path) -> None:
    # torchvision's own operators need a torch with CUDA; nothing here calls them, but its import wants them known.
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import transformers

    processor: Any = transformers.AutoProcessor.from_pretrained(str(directory))
    rows = []
    for n, fps, size, words in VIDEOS:
        content = [{"type": "text", "text": words}, {"type": "video"}, {"type": "text", "text": "and?"}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        seen = {"total_num_frames": n, "fps": fps, "duration": n / fps, "video_backend": "pyav"}
        out = processor(text=[text], videos=[frames_of(n, size)], video_metadata=[seen], return_tensors="pt")
        values = out["pixel_values_videos"]
        row = {"ids": np.array(out["input_ids"])[0].tolist(), "grid": np.array(out["video_grid_thw"])[0].tolist()}
        if not size[0] % 32 and not size[1] % 32:
            row["pixels"] = digest(np.rint((np.array(values) * 0.5 + 0.5) * 255))
        rows.append(row)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    stored[transformers.__version__] = rows
    lines = ",\n".join(
        f'"{release}": [\n' + ",\n".join(json.dumps(row) for row in found) + "\n]"
        for release, found in sorted(stored.items())
    )
    STORED.write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
