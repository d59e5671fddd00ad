"""The base of a family's processor, and what it declares and measures of media."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Kind
from tokenization.chat.thought_form import ThoughtForm
from tokenization.chat.tool_form import ToolForm
from tokenization.media.source import Source
from tokenization.media.video_plan import VideoPlan
from tokenization.messages import Reduced, ReducedBy
from tokenization.placeholders import Layout, expand_placeholders, expand_rows, plain_positions, render_prompt
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate
from tokenization.text.tokenizer import Tokenizer

Expansion = Literal["run", "rows", "turns", "frames", "marked", "numbered"]
Positions = Literal["text", "grid", "time"]
Feature = Literal["grounding", "audio_in_video", "tiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modality:
    """What a family declares of one kind of medium. A test holds every family to it.

    expansion: what one placeholder of the rendered prompt becomes. "run": as many as the medium has tokens;
    "rows": a run for each row of tokens, with an id of the model's own after each, the last one's perhaps another;
    "turns": as "run", but with its sound a video becomes runs of both in turns; "frames": a run for each temporal grid,
    with its time as text before it; "marked": as "run", between two ids of the model's own; "numbered": such a run for
    each frame, with its number as text before it.

    positions: "text": its tokens count on as text does, and the delta is 0; "grid": on three axes, by time step, row
    and column; "time": the same, with time in seconds instead of steps.
    """

    most: int | None = None  # items in one prompt; None: only --max-items counts
    fixed: bool = False  # every item has one size and one number of tokens; no setting changes it
    expansion: Expansion = "run"
    positions: Positions = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is known of one medium before its array is made: enough to lay out the prompt."""

    kind: Kind
    grid: tuple[int, int, int]  # (t, h, w) in patches; of an audio (1, 1, frames)
    shape: tuple[int, ...]  # of the array that crosses in shared memory
    n_tokens: int
    dtype: Literal["uint8", "float32"] = "uint8"  # of that array
    size: tuple[int, int] | None = None  # (width, height) of a picture as it was sent, upright, in pixels
    resized: tuple[int, int] | None = (
        None  # (height, width) in pixels that the model sees of a picture, without padding
    )
    video: VideoPlan | None = None  # of a video: which frames, and how far apart
    # Of an audio: float32 [n], mono at 16 kHz. Only decoding tells how long a sound is, so it is done by then.
    sound: np.ndarray | None = field(default=None, compare=False, repr=False)
    of_video: bool = False  # the sound of the video before it, whose place in the prompt it shares
    n_delimiters: int = 0  # ids that its placeholders bring with them, such as the end of each row of a picture
    reduced: Reduced | None = None  # what a bound of the server made of it

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def seen(self) -> tuple[int, int] | None:
        """(width, height) in pixels that the model sees of a picture, or of each frame; None of a sound."""
        found = self.resized if self.video is None else self.video.size
        return None if found is None else found[::-1]

    @property
    def n_added(self) -> int:
        """How many ids it adds to what `render` gives, where one placeholder stands for each medium."""
        return self.n_tokens + self.n_delimiters - (0 if self.of_video else 1)

    @property
    def gives_way(self) -> bool:
        """Whether it is a video that may be made smaller."""
        frame = None if self.video is None else self.video.frame
        return frame is not None and frame.options.total_pixels is None

    @property
    def fewest(self) -> int:
        """Tokens that it has at the least: of a video that gives way one for each temporal grid."""
        if not self.gives_way:
            return self.n_tokens
        n_grids = self.grid[0]  # a single one needs two tokens; fewer than four could become one by rounding
        return max(n_grids, min(self.n_tokens, 4) if n_grids == 1 else 0)

    def cut(self, rows: int) -> "Measure":
        """The same video with only the first `rows` rows of the array: whole temporal grids."""
        t, h, w = self.grid
        n = rows * t // self.shape[0]
        return replace(
            self, grid=(n, h, w), shape=(self.shape[0] // t * n, *self.shape[1:]), n_tokens=self.n_tokens // t * n,
            n_delimiters=self.n_delimiters // t * n,
        )  # fmt: skip

    def shrunk(self, max_tokens: int, limit: ReducedBy) -> "Measure":
        """The same video within `max_tokens`, if each temporal grid may have one; `limit` is what asks for it."""
        assert self.video is not None and self.video.frame is not None, "only a video gives way"
        frame = self.video.frame
        # A pixel more for each grid: where a size fits exactly, the root in its rule would round it down.
        height, width = frame.find(max_tokens * frame.factor**2 + self.grid[0])
        if (height, width) == self.video.size:
            return self
        t, h, w = self.grid
        patch = self.video.size[0] // h
        grid = (t, height // patch, width // patch)
        wanted = self.reduced.wanted if self.reduced else self.video.size[::-1]
        return replace(
            self,
            grid=grid,
            shape=(math.prod(grid), *self.shape[1:]),
            n_tokens=math.prod(grid) * self.n_tokens // (t * h * w),
            video=replace(self.video, size=(height, width)),
            reduced=Reduced(limit=limit, size=(width, height), wanted=wanted),
        )


@dataclass(frozen=True, slots=True)
class StageClock:
    """Seconds that one job spent; a stage may be entered many times, but not within itself."""

    # modality, or "prompt" for all of it -> stage -> seconds
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, modality: str = "prompt") -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = self.seconds.setdefault(modality, {})
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start


class MediaHandler(ABC):
    """One kind of medium as one model reads it."""

    origin: str  # for people: the file that says how

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where the chat bounds the sizes of all its media in a way that this model does not take."""
        return None

    @abstractmethod
    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Reads a picture's header, a video's packets and one frame; decodes a sound. Raises ChatError."""

    @abstractmethod
    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The item that needs most memory within `limits` and `max_tokens`; None where none is within them.

        The memory profile encodes a dummy of it: an array of zeros of its `shape` and `dtype`.
        """

    @abstractmethod
    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """The array as measured; fewer rows where the end of a video is damaged. Raises ChatError."""


class Processor(ABC):
    """The host half of a family; made once per worker from the checkpoint's files. numpy only.

    What is not abstract holds for most families: one placeholder becomes one run, and positions count on as text does.
    """

    tokenizer: Tokenizer
    modalities: Mapping[Kind, Modality]  # of the class: the family's; of an object: those that its checkpoint takes
    # The same of these. "grounding": it takes boxes, and its answers point at pictures with <ref>, <box> and <quad>;
    # "audio_in_video": the sound of a video may come along with it; "tiles": it cuts pictures into tiles, and a request
    # may say into how many.
    features: frozenset[Feature] = frozenset()
    drops_turns = False  # `fit` may leave the oldest ones out, and their media
    structured_output = True  # whether the vocabulary's bytes are known, so that answers can be held to a form
    tool_form: ToolForm | None = None  # how the family's models write calls of tools; None: they were taught none
    thought_form: ThoughtForm | None = None  # how those of the family's models that think aloud write it
    placeholders: Mapping[Kind, int]  # what stands in the prompt for each token of a medium
    handlers: Mapping[Kind, MediaHandler]  # of the kinds that the checkpoint takes
    stop_ids: tuple[int, ...] = ()  # ids that end an answer besides those of generation_config.json

    @abstractmethod
    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError for damaged or other files."""

    @property
    @abstractmethod
    def written_by(self) -> str:
        """For people: the file that holds the chat template."""

    @property
    def marks(self) -> Mapping[Kind, int]:
        """What `render` writes for each medium: of most families the placeholder."""
        return self.placeholders

    @property
    def origins(self) -> dict[str, str]:
        """For people: "chat template", "pictures", "videos", "sounds" -> the file that says how."""
        return {"chat template": self.written_by} | {_MANY[kind]: own.origin for kind, own in self.handlers.items()}

    def fit(self, chat: Chat) -> Chat:
        """The chat without the oldest turns that the model's window drops. Raises ChatError if it cannot be read."""
        for handler in self.handlers.values():
            handler.refuse_bounds(chat)
        return chat

    @abstractmethod
    def render(self, chat: Chat) -> list[int]:
        """Ids with one placeholder for each medium.

        Raises ChatError where the template refuses the chat, or has no place for each medium.
        """

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        return self.handlers[source.kind].measure(source, limits)

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        """Of each modality."""
        found = (handler.largest(limits, max_tokens) for handler in self.handlers.values())
        return tuple(measure for measure in found if measure is not None)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        return self.handlers[measure.kind].load(source, measure, limits, clock)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        """One placeholder for each medium -> runs of placeholders; a video and its sound share one placeholder."""
        return expand_placeholders(ids, self.placeholders, [measure.n_tokens for measure in measures])

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        """int32 [3, n] and the delta, for one request alone."""
        return plain_positions(len(layout.input_ids))


_MANY: Mapping[Kind, str] = {"image": "pictures", "video": "videos", "audio": "sounds"}


class TemplateProcessor(Processor):
    """Of a family whose chats a checkpoint's own template writes."""

    tokenizer: BPETokenizer
    template: ChatTemplate
    opens = True  # the prompt begins with what the vocabulary puts in front of every text

    @property
    def written_by(self) -> str:
        return self.template.location

    def render(self, chat: Chat) -> list[int]:
        try:
            return self._rendered(chat)
        except ChatError:
            apart = chat if self.thought_form is None else self.thought_form.told_apart(chat)
            if apart == chat:
                raise
        return self._rendered(apart)

    def _rendered(self, chat: Chat) -> list[int]:
        return render_prompt(chat, self.template, self.tokenizer, self.marks, opens=self.opens)


class RowsProcessor(TemplateProcessor):
    """Of pictures that are rows of placeholders, each with an id behind it: the picture's spans are its rows."""

    row_ends: tuple[int, int]  # behind each row, behind the last

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        placeholder, pictures = self.placeholders["image"], []
        for measure in measures:
            rows = measure.n_delimiters
            pictures.append(np.full((rows, measure.n_tokens // rows + 1), placeholder, np.int64))
            pictures[-1][:, -1] = self.row_ends[0]
            pictures[-1][-1, -1] = self.row_ends[1]
        return expand_rows(ids, placeholder, pictures)
