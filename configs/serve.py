"""What was asked for at start: one frozen ServeConfig, handed down in pieces.

What each field means, its unit and its range stand in configs/table.py, from which --help and the docs are made.
"""

from pathlib import Path
from typing import Literal

import msgspec

from configs.traces import TraceConfig

Device = Literal["auto", "npu", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Hub = Literal["huggingface", "modelscope"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MEGA = 10**6


class HubModel(msgspec.Struct, frozen=True):
    """A model by its name on a hub."""

    name: str  # ORG/NAME
    revision: str | None = None  # branch, tag or commit; None: the hub's default branch

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint is served and under which name."""

    path: Path  # means nothing before server/hub has fetched `wanted`
    served_name: str
    hub: Hub = "huggingface"
    wanted: HubModel | None = None  # instead of a directory; once it is fetched, with the revision that it has


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and what it takes from one client."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 64 * MIB
    max_inflight_bytes: int = 1 * GIB
    max_head_bytes: int = 64 * KIB
    max_unread_bytes: int = 256 * MIB
    max_connections: int = 8192
    receive_seconds: float = 30.0
    receive_rate: int = 8 * KIB  # bytes a second
    body_seconds: float = 300.0
    send_seconds: float = 60.0
    max_requests: int = 768
    max_n: int = 8
    max_asked_tokens: int = 1 << 21
    max_asked_bytes: int = 512 * MIB
    drain_seconds: float = 30.0
    api_keys: tuple[bytes, ...] = ()  # SHA-256 of each: a configuration that is printed shows no key
    api_key_file: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    root_path: str | None = None
    url_file: Path | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    show_model_root: bool = False


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
    max_effort_pixels: int = 12_288 * MEGA
    free_effort_pixels: int = 256 * MEGA


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one tokenizer worker may take of the machine's memory. Goes to every worker."""

    memory_bytes: int = 3 * GIB
    keep_bytes: int = 256 * MIB


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
    kv_cache_share: float | None = None
    embedding_bytes: int = 1 * GIB
    graphs: bool = True
    threads: int | None = None
    fits_threads: bool = False  # not a setting: one thread where `threads` of them are not faster


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a server writes to stderr, and how."""

    level: LogLevel = "info"
    format: LogFormat = "text"
    access: bool = True


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for at start."""

    model: ModelConfig
    http: HttpConfig = HttpConfig()
    media: MediaConfig = MediaConfig()
    worker: WorkerConfig = WorkerConfig()
    shm: ShmConfig = ShmConfig()
    engine: EngineConfig = EngineConfig()
    log: LogConfig = LogConfig()
    traces: TraceConfig = TraceConfig()
    workers: int = 2
    pulse_seconds: float = 20.0
    load_seconds: float = 600.0
    wait_seconds: float = 60.0
    step_seconds: float = 60.0
    canary_seconds: float = 30.0
    canary_deadline_seconds: float = 10.0
