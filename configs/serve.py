"""What was asked for at start: one frozen ServeConfig, handed down in pieces.

What each field means, its unit and its range stand in configs/table.py, from which --help and the docs are made.
"""

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
    max_inflight_bytes: int = 1 * GIB
    max_requests: int = 256
    max_n: int = 8
    drain_seconds: float = 30.0
    allowed_origins: tuple[str, ...] = ()


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker may open and how large it may be. Goes to every worker."""

    roots: tuple[Path, ...] = ()
    max_items: int = 32
    max_file_bytes: int = 64 * MIB
    max_source_pixels: int = 178_956_970
    max_pixels: int = 1280 * 28 * 28
    own_pixels: bool = False  # not a setting: the checkpoint's own bound of a picture takes the place of a lower one
    max_frames: int = 768
    max_video_seconds: float = 3600.0
    max_decoded_frames: int = 18_000
    max_video_pixels: int = 90_316_800
    max_audio_seconds: float = 600.0


class ShmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where shared memory lies and how much of it the pool may hold."""

    root: Path | None = None
    pool_bytes: int = 1 * GIB


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process may use."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    max_seqs: int = 16
    max_batched_tokens: int = 2048
    block_size: int = 128
    kv_cache_bytes: int | None = None
    kv_cache_share: float = 0.5
    embedding_bytes: int = 1 * GIB
    threads: int | None = None


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for at start."""

    model: ModelConfig
    http: HttpConfig = HttpConfig()
    media: MediaConfig = MediaConfig()
    shm: ShmConfig = ShmConfig()
    engine: EngineConfig = EngineConfig()
    workers: int = 2
    pulse_seconds: float = 20.0
    step_seconds: float = 60.0
