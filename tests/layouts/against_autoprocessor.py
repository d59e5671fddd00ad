"""Random chats with real media through our host half and through transformers' AutoProcessor: their ids must be equal.

A program by itself, because AutoProcessor needs torchvision, which lies apart from the project's environment (`make
long` puts it into build/reference): where it can be imported, transformers takes other classes than in all other tests.

    PYTHONPATH=build/reference:. python -m tests.layouts.against_autoprocessor CHATS_PER_DIRECTORY
"""

import base64
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

# torchvision's own operators need a torch with CUDA; nothing here calls them, but its import wants them to be known.
OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import AutoProcessor  # noqa: E402

from configs.checkpoint import Checkpoint  # noqa: E402
from configs.serve import MediaConfig  # noqa: E402
from model.registry import family_of  # noqa: E402
from tests.layouts.chats import hub_form, random_messages  # noqa: E402
from tests.layouts.directories import layouts, write_layout  # noqa: E402
from tests.layouts.templates import OF_PARTS  # noqa: E402
from tests.model.engine.engine_harness import data_url, picture  # noqa: E402
from tests.samples.sounds import make_wav  # noqa: E402
from tests.samples.soundtracks import tone  # noqa: E402
from tests.samples.videos import make_clip  # noqa: E402
from tokenization.chat.dialects import chat_from_openai  # noqa: E402
from tokenization.media.source import Source  # noqa: E402
from tokenization.media.video_frames import read_video  # noqa: E402
from tokenization.messages import Prepare, StartWorker  # noqa: E402
from tokenization.prepare import prepare  # noqa: E402
from tokenization.processor import Processor  # noqa: E402

# Of before processors knew how many pads a picture has, and how a chat reads: AutoProcessor cannot use them any more.
WITHOUT_PROMPTS = ("llava-1.5-7b-hf-first", "fuyu-8b")
LIMITS = MediaConfig(max_pixels=1 << 28)  # the server's own caps are another matter
CLIPS = [make_clip(n, rate=10, size=size, key_every=8) for n, size in ((8, (56, 112)), (31, (90, 60)))]


class Media:
    """What one chat's media are: as URLs for us, and opened for transformers."""

    def __init__(self, rng: Random, host: Processor) -> None:
        self._rng = rng
        self._host = host
        self.opened: dict[str, list[Any]] = {"image": [], "video": [], "audio": []}

    def source(self, kind: str) -> str:
        """A new medium as a data: URL."""
        rng = self._rng
        if kind == "image":
            image = picture(rng.randrange(28, 400), rng.randrange(28, 400), rng.randrange(1000))
            self.opened[kind].append(image)
            return data_url(image)
        if kind == "audio":
            samples = tone(rng.randrange(1200, 64000), rng.randrange(1000))
            self.opened[kind].append((samples / 32768).astype(np.float32))
            return "data:audio/wav;base64," + base64.b64encode(make_wav(samples)).decode()
        clip = rng.choice(CLIPS)
        # Which frames are looked at is another package's rule: transformers gets the frames that we chose.
        source = Source(kind="video", param="", data=clip)
        plan = self._host.measure(source, LIMITS).video
        assert plan is not None
        self.opened[kind].append(read_video(source, plan, LIMITS))
        return "data:video/mp4;base64," + base64.b64encode(clip).decode()


def compare(path: Path, n: int) -> None:
    """`n` random chats. Raises AssertionError with the first that differs."""
    checkpoint = Checkpoint(path)
    host = family_of(checkpoint).processor(checkpoint, LIMITS.max_pixels)
    processor = AutoProcessor.from_pretrained(str(path))
    start = StartWorker(checkpoint=str(path), media=LIMITS, max_model_len=1 << 20, shm_root="")
    rng = Random(str(path.name))
    for i in range(n):
        media = Media(rng, host)
        messages = random_messages(rng, sorted(host.modalities), media.source)
        job = Prepare(request_id="x", chat=chat_from_openai(messages), count_only=True)
        ours = prepare(job, start, host, lambda measured: (), lambda: None).input_ids.tolist()
        assert ours == theirs(processor, messages, media), f"{path.name}, chat {i}: {hub_form(messages)}"


def theirs(processor: Any, messages: list[dict[str, Any]], media: Media) -> list[int]:
    template = processor.chat_template or processor.tokenizer.chat_template
    text = processor.tokenizer.apply_chat_template(
        hub_form(messages, lists=template in OF_PARTS),
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
    )
    names = {"image": "images", "video": "videos", "audio": "audio"}
    given: dict[str, Any] = {names[kind]: found for kind, found in media.opened.items() if found}
    if "audio" in given:
        given["audio_kwargs"] = {"sampling_rate": 16000}
    if "videos" in given:
        given["videos_kwargs"] = {"do_sample_frames": False}
    found: list[int] = torch.as_tensor(processor(text=[text], **given)["input_ids"])[0].tolist()
    return found


def main(n: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        for layout in layouts():
            if layout.model in WITHOUT_PROMPTS:
                continue
            compare(write_layout(layout, Path(root) / str(layout)), n)
            print(f"{layout}: {n} chats, none differs", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
