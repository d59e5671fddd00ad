"""The messages between the server and a tokenizer worker."""

import sys
from typing import Literal

import msgspec
import numpy as np

from configs.serve import MediaConfig
from configs.worker import WorkerConfig
from tokenization.chat.boxes import Box
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import Chat, Kind, Media

# What a worker is for: every job; texts alone; pictures that take no longer than SHORT_SECONDS.
Lane = Literal["media", "text", "picture"]
SHORT_SECONDS = 0.5  # of a core: by the weights of tokenization/media/effort.py
# The settings that make media smaller, by name; max_model_len also where the KV cache holds less than that.
ReducedBy = Literal["max_pixels", "max_video_pixels", "max_model_len", "embedding_mib", "shm_mib"]


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """What a bound of the server took from a picture, or from each frame of a video. Sizes are (width, height)."""

    limit: ReducedBy
    size: tuple[int, int]  # pixels that the model sees
    wanted: tuple[int, int]  # what request and checkpoint alone would have given


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of one medium mean; two words in input_ids say where they lie, or its placeholders are all left.

    Then the engine has said that it holds the embeddings of its key.
    """

    kind: Kind
    spans: tuple[tuple[int, int], ...]  # (start, length) runs of placeholders in input_ids
    grid: tuple[int, int, int]  # (t, h, w) in patches; of an audio (1, 1, frames)
    size: tuple[int, int] | None = None  # (width, height) of a picture as it was sent, upright, in pixels
    seen: tuple[int, int] | None = None  # (width, height) in pixels of a picture or a frame as the model sees it
    seconds_per_grid: float | None = None  # of a video: between two temporal grids
    param: str = ""  # the field that it came from
    reduced: Reduced | None = None  # None: no bound of the server made it smaller
    # SHA-256 of its source bytes and of what became of them, salted; empty: nothing of it is ever shared.
    key: bytes = b""


# ---- server -> worker


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message: what a worker needs to start."""

    checkpoint: str  # directory
    media: MediaConfig
    max_model_len: int
    shm_root: str  # the directory that holds the leases
    directory: str = ""  # the server's working directory, where relative paths of media begin, too
    worker: WorkerConfig = WorkerConfig()
    compile_bytes: int = sys.maxsize  # that compiling one form may take, if its own bound allows that
    chat_template: str = ""  # the operator's file; empty: the checkpoint's own
    lane: Lane = "media"  # one of texts gets no job with media, and loads nothing that opens them


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has room for in one prompt now, which may be less than StartWorker says."""

    tokens: int  # prompt and answer
    media_tokens: int  # of all media
    media_bytes: int  # of shared memory


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A chat to ids, positions, arrays. `count_only` writes nothing, and decodes only sounds and a frame per video."""

    request_id: str
    chat: Chat
    count_only: bool = False
    room: Room | None = None  # None: as much as the model's length
    salt: bytes = b""  # of content keys; empty: no key is made


class Encode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text to ids and positions as it stands, without a template. Answered by Prepared or PrepareFailed."""

    request_id: str
    text: str
    opens: bool = True  # behind the ids that the vocabulary puts in front of every prompt


class Draw(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Draw the boxes of an answer on the picture they belong to. Answered by Drawn or PrepareFailed."""

    request_id: str
    media: Media
    boxes: tuple[Box, ...]


class Compile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compile the form of an answer. Answered by Compiled or PrepareFailed."""

    request_id: str
    grammar: Grammar
    blanks: int = 0  # so many at the start of the answer are no part of its text


class Leases(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to Measured: one segment name per media item, in order. An empty one: the engine has this key."""

    request_id: str
    names: tuple[str, ...]


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request ended, or its bytes do not fit. A job that it still finds ends in PrepareFailed."""

    request_id: str


# ---- worker -> server


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The tokenizer and the template are loaded."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The bytes of each item of a chat with media. Sent again, the first leases void, when a video decodes shorter."""

    request_id: str
    nbytes: tuple[int, ...]
    params: tuple[str, ...]
    n_tokens: tuple[int, ...]  # tokens of each item, as many as the model will have embeddings for
    keys: tuple[bytes, ...] = ()  # MediaItem.key of each; none without a salt
    seconds: float = 0.0  # that loading them may take, on a busy machine: by their sizes and lengths


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All of one request, computed for it alone. In a `count_only` answer no placeholder holds a word."""

    request_id: str
    input_ids: np.ndarray  # int64 [n]; two words per media item with a lease are negative
    media: tuple[MediaItem, ...]
    positions: np.ndarray  # int32 [3, n]
    position_delta: int  # a generated token at index i has position i + position_delta
    seconds: dict[str, dict[str, float]]  # modality, or "prompt" for all of it -> stage -> seconds


class Drawn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request_id: str
    picture: str  # a data: URL of a PNG
    notes: tuple[str, ...]  # what its reader should know


class Compiled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request_id: str
    grammar: CompiledGrammar


class PrepareFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This job ended without a result; the worker lives on. `param` names the offending field, `code` the error.

    "long": pictures that the worker of pictures does not take; they are good, and another one takes them.
    "unavailable": the machine had nothing left for it.
    """

    request_id: str
    kind: Literal["bad_request", "internal", "cancelled", "long", "unavailable"]
    message: str
    param: str | None = None
    code: str | None = None


class WorkerPulse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent every half second by a thread of its own: which job runs, for how long, and how long without progress."""

    request_id: str | None
    busy_seconds: float  # without those that it waits for leases
    still_seconds: float = 0.0  # since the job last began a packet, a block, a picture; 0 while it waits for leases


class WorkerGrown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent after an answer when the process keeps too much memory of earlier jobs. It works on until it is replaced."""

    nbytes: int


Job = Prepare | Encode | Draw | Compile
ToWorker = StartWorker | Job | Leases | Cancel
FromWorker = WorkerReady | Measured | Prepared | Drawn | Compiled | PrepareFailed | WorkerPulse | WorkerGrown
