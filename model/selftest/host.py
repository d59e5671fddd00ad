"""The host's half around an engine: prepares chats as a worker does, and books what the engine says, as a server."""

import base64
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from configs.checkpoint import Checkpoint
from configs.serve import Device, Dtype, EngineConfig, MediaConfig
from model.engine.engine import Engine
from model.engine.loop import load
from model.engine.messages import (
    Finished,
    FromEngine,
    Generate,
    MediaRead,
    PromptScored,
    SamplingParams,
    StartEngine,
    StepDone,
    Token,
)
from model.registry import family_of
from shm import Owner, Pool
from tokenization.chat.parts import Chat, Media, Text, Turn
from tokenization.messages import Measured, Prepare, StartWorker
from tokenization.prepare import prepare
from tokenization.text.detokenize import whole_text

MAX_MODEL_LEN = 1024  # tokens
MAX_SEQS = 16
_POOL_BYTES = 256 << 20
_MAX_PIXELS = 448 * 448


class Host:
    """One checkpoint's requests, and what came back of each."""

    def __init__(self, checkpoint: Path, owner: Owner) -> None:
        found = Checkpoint(checkpoint)
        media = MediaConfig(max_pixels=_MAX_PIXELS)
        self._start = StartWorker(
            checkpoint=str(checkpoint), media=media, max_model_len=MAX_MODEL_LEN, shm_root=str(owner.root)
        )
        self._processor = family_of(found).host(found, media.max_pixels)
        self._pool = Pool(owner, _POOL_BYTES)
        self.tokens: dict[str, list[Token]] = {}
        self.scores: dict[str, list[Token]] = {}
        self.first: dict[str, float] = {}  # time.perf_counter() of the first token
        self.finished: dict[str, Finished] = {}

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures; else they are left out of its prompts."""
        return "image" in self._processor.modalities

    def prepare(self, name: str, text: str, picture: Image.Image | None, sampling: SamplingParams) -> Generate:
        parts: list[Text | Media] = [Text(text=text)]
        if picture is not None and self.sees:
            parts.insert(0, Media(kind="image", source=_data_url(picture), param="picture"))

        def ask(measured: Measured) -> Sequence[str]:
            return self._pool.lease(name, measured.nbytes)

        job = Prepare(request_id=name, chat=Chat(turns=(Turn(role="user", parts=tuple(parts), plain=False),)))
        prepared = prepare(job, self._start, self._processor, ask, lambda: None)
        return Generate(prepared=prepared, sampling=sampling)

    def run(self, engine: Engine, generates: Sequence[Generate]) -> list[tuple[float, bool]]:
        """Submit all at once and step to the end. -> seconds of each step, and whether it only decoded."""
        for generate in generates:
            refused = engine.submit(generate)
            if refused is not None:
                raise ValueError(f"refused: {refused.message}")
        steps = []
        while not engine.idle:
            started = time.perf_counter()
            messages = engine.step()
            ended = time.perf_counter()
            steps.append((ended - started, self._book(messages, ended)))
        failed = [self.finished[one.request_id] for one in generates if self.finished[one.request_id].reason != "done"]
        if failed:
            raise ValueError(f"{failed[0].reason}: {failed[0].message}")
        return steps

    def text(self, name: str) -> str:
        """What was answered, without what ended it."""
        tokenizer = self._processor.tokenizer
        return whole_text(tokenizer, [one.id for one in self.tokens[name] if not tokenizer.is_special(one.id)]).strip()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Whatever is no part of an answer's text ends it."""
        return tuple(self._processor.tokenizer.special.values())

    def _book(self, messages: Sequence[FromEngine], now: float) -> bool:
        """Whether the step only decoded."""
        decoded = False
        for message in messages:
            if isinstance(message, MediaRead):
                self._pool.give_back(message.request_id, message.names)
            elif isinstance(message, PromptScored):
                self.scores.setdefault(message.request_id, []).extend(message.tokens)
            elif isinstance(message, StepDone):
                decoded = message.n_tokens == len(message.tokens)
                for event in message.tokens:
                    self.first.setdefault(event.request_id, now)
                    self.tokens.setdefault(event.request_id, []).append(event.token)
            elif isinstance(message, Finished):
                self.finished[message.request_id] = message
                self._pool.retire(message.request_id)
                self._pool.settle(message.request_id)
        return decoded


@contextmanager
def host_at(checkpoint: Path, root: Path) -> Iterator[Host]:
    """Its shared memory lies under `root`."""
    with closing(Owner.claim(root)) as owner:
        yield Host(checkpoint, owner)


def load_engine(
    checkpoint: Path, root: Path, device: Device, dtype: Dtype,
    further: Callable[[], None] = lambda: None,
) -> Engine:  # fmt: skip
    """As the engine's process does it: weights, profile, cache, a warm-up, graphs where the device has them.

    further: called behind each tensor of the weights, and behind each of the four stages that follow.
    """
    start = StartEngine(
        checkpoint=str(checkpoint), engine=EngineConfig(device=device, dtype=dtype, max_seqs=MAX_SEQS),
        shm_root=str(root), max_model_len=MAX_MODEL_LEN,
    )  # fmt: skip
    engine, _ = load(start, further)
    return engine


def red_circle(side: int = 224) -> Image.Image:
    image = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).ellipse((side // 5, side // 5, side - side // 5, side - side // 5), fill=(220, 30, 30))
    return image


def random_picture(side: int, seed: int) -> Image.Image:
    small = torch.randint(256, (7, 7, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(small.numpy()).resize((side, side), Image.Resampling.BICUBIC)


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
