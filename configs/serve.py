"""What was asked for at start: one frozen ServeConfig, handed down in pieces. Knows nothing that runs."""

from pathlib import Path
from typing import Literal

import msgspec

Device = Literal["auto", "npu", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint is served and under which name."""

    path: Path
    served_name: str


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and what it takes from one client."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 64 * MIB
    max_inflight_bytes: int = 1 * GIB  # bodies of all unfinished requests together; the next byte is a 429
    max_requests: int = 256  # accepted and unfinished at once; the next one is a 429
    max_n: int = 8  # answers to one chat; more is a 400
    drain_seconds: float = 30.0  # how long SIGTERM waits for running requests


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker may open and how large it may be. Goes to every worker."""

    roots: tuple[Path, ...] = ()  # local paths are refused unless they lie under one of these
    max_items: int = 32  # media items in one prompt, history included
    max_file_bytes: int = 64 * MIB  # encoded bytes of one local file
    max_source_pixels: int = 178_956_970  # width x height in the header, before decoding
    max_pixels: int = 1280 * 28 * 28  # pixels of one image or frame after resizing; caps the checkpoint's own bound
    max_frames: int = 768  # frames of one video that reach the model
    max_video_seconds: float = 3600.0
    max_decoded_frames: int = 18_000  # of one video, decoded to get at those; full HD, larger ones count as more
    max_video_pixels: int = 90_316_800  # of all temporal grids of one video: frames / 2 * height * width
    max_audio_seconds: float = 600.0  # of one sound, or of the sound of one video


class ShmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where shared memory lies and how much of it the pool may hold."""

    root: Path | None = None  # None: /dev/shm/pixelferry-<uid>
    pool_bytes: int = 1 * GIB


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process may use."""

    device: Device = "auto"  # cuda where torch sees one, else cpu
    dtype: Dtype = "auto"
    max_model_len: int | None = None  # None: the checkpoint's own limit, at most 32768
    max_seqs: int = 16  # sequences in the engine at once; further requests queue in the server
    max_batched_tokens: int = 2048  # token budget of one step
    block_size: int = 128  # tokens in one KV block
    kv_cache_bytes: int = 1 * GIB  # size of the KV cache
    embedding_bytes: int = 1 * GIB  # encoder outputs kept in host memory
    threads: int | None = None  # CPU threads of the engine; None: torch's choice


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for at start."""

    model: ModelConfig
    http: HttpConfig = HttpConfig()
    media: MediaConfig = MediaConfig()
    shm: ShmConfig = ShmConfig()
    engine: EngineConfig = EngineConfig()
    workers: int = 2
    pulse_seconds: float = 20.0  # a child that is silent for so long is killed and started anew
    # A step may take so long, and more with each token and patch; a job, and more with each media item (of at most
    # media.max_items) and, where it is heard, with the length that a sound may have (media.max_audio_seconds).
    step_seconds: float = 60.0
