"""What was asked for at start: one frozen ServeConfig, handed down in pieces. Each setting is declared here, once.

From these declarations the command line, --help and docs/configuration.md are made (configs/setting.py).
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from configs.fetch import FetchConfig
from configs.logs import LogConfig
from configs.setting import Hub, HubModel, Setting
from configs.traces import TraceConfig
from configs.worker import WorkerConfig

Device = Literal["auto", "npu", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KIB, MIB, GIB, MEGA = 1 << 10, 1 << 20, 1 << 30, 10**6

# fmt: off
# A setting's type, then what people are told of it, its least and greatest value and their unit.


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint is served and under which name."""

    path: Annotated[Path, Setting(
        "checkpoint directory, or a model's name on a hub, which is downloaded: ORG/NAME, ORG/NAME@REVISION; the "
        "embedded demo model when absent", name="model", kind="checkpoint",
    )]  # means nothing before server/hub has fetched `wanted`
    hub: Annotated[Hub, Setting(
        "where a model's name is looked up; each hub's own client downloads it and keeps it in its own cache"
    )] = "huggingface"
    served_name: Annotated[str, Setting(
        "the name that clients ask for; the directory's own name, or ORG/NAME, when absent", name="served_model_name"
    )]
    chat_template: Annotated[Path | None, Setting(
        "file with a Jinja chat template, in the place of the checkpoint's own", kind="file"
    )] = None
    wanted: HubModel | None = None  # instead of a directory; once it is fetched, with the revision that it has


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and what it takes from one client."""

    host: Annotated[str, Setting("address to listen on")] = "127.0.0.1"
    port: Annotated[int, Setting("TCP port to listen on; 0 takes a free one", 0, 65535)] = 8000
    max_body_bytes: Annotated[int, Setting(
        "largest request body; a larger one is a 413", 1, 4096, "MiB", name="max_body_mib"
    )] = 64 * MIB
    max_inflight_bytes: Annotated[int, Setting(
        "bodies of all unfinished requests together; what comes on top is a 429",
        1, 1 << 20, "MiB", name="max_inflight_mib",
    )] = 1 * GIB
    max_head_bytes: Annotated[int, Setting(
        "request line and headers of one request; more is a 431", 1, 1024, "KiB", name="max_head_kib"
    )] = 64 * KIB
    max_unread_bytes: Annotated[int, Setting(
        "bytes of answers that clients have not taken, of all connections together; beyond it the connection whose "
        "client has taken nothing for longest is cut", 1, 1 << 20, "MiB", name="max_unread_mib",
    )] = 256 * MIB
    max_connections: Annotated[int, Setting(
        "open connections, fewer where the hard limit of open files leaves fewer; a new one takes the place of the one "
        "that has asked for nothing for longest, and is a 503 when all are busy", 1, 1 << 20,
    )] = 8192
    receive_seconds: Annotated[float, Setting(
        "how long a request's head may take, and how long its body may stand still; then a 408", 1, 3600, "seconds"
    )] = 30.0
    receive_rate: Annotated[int, Setting(
        "least rate of a body; one that is receive_seconds behind it is a 408",
        1, 1 << 20, "KiB/s", name="receive_kib_per_second",
    )] = 8 * KIB  # bytes a second
    body_seconds: Annotated[float, Setting(
        "how long one body may take, whatever its rate; then it is a 408", 1, 86400, "seconds"
    )] = 300.0
    send_seconds: Annotated[float, Setting(
        "how long a client may take nothing of what there is for it; then it is cut, and its request aborted",
        1, 86400, "seconds",
    )] = 60.0
    max_requests: Annotated[int, Setting("requests accepted and unfinished at once; the next is a 429", 1, 65536)] = 768
    client_share: Annotated[Literal["fair", "off"], Setting(
        "fair: who has more than a share of what is scarce gives way to clients with less; off: all count as one client"
    )] = "fair"
    cache_scope: Annotated[Literal["key", "server"], Setting(
        "who shares what caches keep: key: requests with one API key; server: all; without API keys all do"
    )] = "key"
    max_n: Annotated[int, Setting(
        "answers that one chat may ask for (`n`); each takes a place in the engine of its own", 1, 64
    )] = 8
    max_asked_tokens: Annotated[int, Setting(
        "tokens that one body may ask for: prompts + `n` x (answers + prompts with log-probabilities), each twice for "
        "each log-probability that stands with it", 1, 1 << 40,
    )] = 1 << 21
    max_asked_bytes: Annotated[int, Setting(
        "bytes that one body may ask for: its answers as JSON, and its parameters for each prompt",
        1, 1 << 20, "MiB", name="max_asked_mib",
    )] = 512 * MIB
    drain_seconds: Annotated[float, Setting("how long SIGTERM waits for running requests", 0, 3600, "seconds")] = 30.0
    api_keys: Annotated[tuple[bytes, ...], Setting(
        "key that clients send as `Authorization: Bearer KEY`; repeatable; `ps` shows it to every user of the machine: "
        "prefer PIXELFERRY_API_KEY or api_key_file", name="api_key", kind="secrets",
    )] = ()  # SHA-256 of each: a configuration that is printed shows no key
    api_key_file: Annotated[Path | None, Setting(
        "file with one key a line, alone or as LABEL KEY, read again when it changes", kind="file"
    )] = None
    key_requests_per_minute: Annotated[int | None, Setting("requests of one API key in a minute", 1, 1_000_000)] = None
    key_concurrency: Annotated[int | None, Setting("unfinished requests of one API key", 1, 1_000_000)] = None
    ssl_certfile: Annotated[Path | None, Setting(
        "certificate chain in PEM: the server speaks TLS and nothing else", kind="file"
    )] = None
    ssl_keyfile: Annotated[Path | None, Setting(
        "private key of ssl_certfile in PEM, without a password; absent when it stands in ssl_certfile", kind="file"
    )] = None
    root_path: Annotated[str | None, Setting(
        "prefix that a proxy leaves in the path: every route answers with and without it", kind="prefix"
    )] = None
    url_file: Annotated[Path | None, Setting(
        "file for the server's URL while it listens; the container's health check reads it", kind="written"
    )] = None
    allowed_origins: Annotated[tuple[str, ...], Setting(
        "origins of web pages whose scripts may use this server (CORS), with commas between them, or * for all; none "
        "by default", kind="origins",
    )] = ()
    allowed_hosts: Annotated[tuple[str, ...], Setting(
        "name by which clients may call this server, beside localhost and loopback addresses; repeatable; asked for "
        "where it listens on a loopback address, elsewhere all names count when absent",
        name="allowed_host", kind="hosts",
    )] = ()
    page: Annotated[Literal["on", "off"], Setting("pages to try the model, /, and look at the server, /status")] = "on"
    show_model_root: Annotated[bool, Setting(
        "/v1/models tells the checkpoint's directory, where load testers find the tokenizer; on a loopback address it "
        "always does",
    )] = False


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker may open and how large it may be. Goes to every worker."""

    roots: Annotated[tuple[Path, ...], Setting(
        "directory whose files a chat may name by path; repeatable; none by default",
        name="allow_media_root", kind="paths",
    )] = ()
    max_items: Annotated[int, Setting("media items in one prompt, history included", 0, 4096)] = 32
    max_file_bytes: Annotated[int, Setting(
        "largest media file, local or in a data: URL, as encoded", 1, 4096, "MiB", name="max_file_mib"
    )] = 64 * MIB
    max_source_pixels: Annotated[int, Setting(
        "width x height that an image's header may announce; more is refused before decoding", 1, 1 << 32, "pixels"
    )] = 178_956_970
    max_pixels: Annotated[int, Setting(
        "pixels of one image or frame after resizing; caps the checkpoint's own bound, which takes its place when "
        "absent with --device npu or cuda, or of a model that cuts pictures into tiles", 3136, 1 << 28, "pixels",
    )] = 1280 * 28 * 28
    # Not a setting: the checkpoint's own bound of a picture takes the place of a lower one, or only one that has tiles.
    own_pixels: Literal["never", "tiles", "always"] = "tiles"
    max_frames: Annotated[int, Setting(
        "frames of one video that reach the model; also the longest list of frames", 2, 16384, "frames"
    )] = 768
    max_video_seconds: Annotated[float, Setting(
        "length of one video; a longer one is refused before it is decoded", 1, 86400, "seconds"
    )] = 3600.0
    max_decoded_frames: Annotated[int, Setting(
        "frames of one video decoded to get at those looked at; above full HD they count as more", 1, 1 << 20, "frames"
    )] = 18_000
    max_video_pixels: Annotated[int, Setting(
        "pixels of all frame pairs of one video after resizing: frames / 2 x height x width", 3136, 1 << 32, "pixels"
    )] = 90_316_800
    max_audio_seconds: Annotated[float, Setting(
        "length of one sound, also of a video's; a longer one is decoded so far, and refused", 1, 86400, "seconds"
    )] = 600.0
    max_effort_pixels: Annotated[int, Setting(
        "work that decoding all media of one request may take, in pixels of a photograph that are decoded and resized, "
        "10 ns of a core each; other formats count by what they take",
        1, 1 << 20, "megapixels", name="max_effort_mpixels",
    )] = 12_288 * MEGA
    free_effort_pixels: Annotated[int, Setting(
        "work that the media of one request may take however few bytes they have; each byte allows 4,096 pixels more, "
        "one of a video 12,288", 0, 1 << 20, "megapixels", name="free_effort_mpixels",
    )] = 256 * MEGA


class ShmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where shared memory lies and how much of it the pool may hold."""

    root: Annotated[Path | None, Setting(
        "directory of the shared memory, or one that others may enter, too: then one of ours inside it; one directory "
        "per user on the machine's shared-memory mount when absent", name="shm_root", kind="path",
    )] = None
    pool_bytes: Annotated[int, Setting(
        "shared memory that the pool may hold; what does not fit now is a 429", 1, 1 << 20, "MiB", name="shm_mib"
    )] = 1 * GIB


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process may use."""

    device: Annotated[Device, Setting(
        "where the model runs; npu is Atlas A2 or A3; auto takes an npu that can be served, else cuda where torch sees "
        "one, else cpu",
    )] = "auto"
    dtype: Annotated[Dtype, Setting(
        "the model's arithmetic; auto takes the checkpoint's own, or bfloat16 where the device does not serve it "
        "(float16 on a cpu, all others on an npu)",
    )] = "auto"
    max_model_len: Annotated[int | None, Setting(
        "prompt and answer of one request together; the checkpoint's limit, at most 32768, when absent",
        16, 1 << 20, "tokens",
    )] = None
    max_seqs: Annotated[int, Setting(
        "sequences in the engine at once; further requests queue in the server", 1, 4096
    )] = 16
    max_batched_tokens: Annotated[int | None, Setting(
        "token budget of one engine step; when absent 256 on a cpu (max_seqs if more), else 2048", 1, 1 << 20, "tokens"
    )] = None
    max_encoder_tokens: Annotated[int | None, Setting(
        "embeddings made in one step, or of one medium; half of max_batched_tokens when absent", 1, 1 << 20, "tokens"
    )] = None
    block_size: Annotated[int | None, Setting(
        "tokens in one block of the KV cache; 16 on a cpu, else 128 when absent; an npu takes 128", 1, 1024, "tokens"
    )] = None
    prefix_cache: Annotated[Literal["on", "off"], Setting("KV blocks stay for prompts that begin alike")] = "on"
    tensor_parallel: Annotated[int, Setting(
        "processes that the model is split over, one device each: NPUs of one host, or shares of a CPU; kv_cache_mib, "
        "embedding_mib and threads are what all of them have together", 1, 64,
    )] = 1
    encoder_parallel: Annotated[Literal["data", "replicated"], Setting(
        "of tensor_parallel, in a step with several media: each process encodes a share of them, or all"
    )] = "data"
    kv_cache_bytes: Annotated[int | None, Setting(
        "size of the KV cache, instead of its share; at most what max_seqs x max_model_len use",
        1, 1 << 24, "MiB", name="kv_cache_mib",
    )] = None
    kv_cache_share: Annotated[float | None, Setting(
        "share, for the KV cache, of the memory free with the weights loaded, on a cpu (0.5 when absent), or of what "
        "an npu or cuda has left beside all that was measured (0.9); at most what max_seqs x max_model_len use",
        0.01, 1,
    )] = None
    embedding_bytes: Annotated[int, Setting(
        "host memory for encoder outputs: of unfinished requests, and what these leave of it for those that stay",
        1, 1 << 24, "MiB", name="embedding_mib",
    )] = 1 * GIB
    forms_bytes: Annotated[int, Setting(
        "what forms (schemas, regexes, grammars, tools) may hold: half for those of running answers, of which one "
        "beyond its client's share waits, half for all that compile", 64, 1 << 24, "MiB", name="forms_mib",
    )] = 1 * GIB
    form_step_ms: Annotated[int, Setting(
        "how long a step waits for the masks of answers in a form; a row whose mask is not ready then waits a step",
        1, 60_000, "milliseconds",
    )] = 50
    encoder_cache: Annotated[Literal["on", "off"], Setting(
        "on: encoder outputs stay after their request, and the same medium is not decoded or encoded again"
    )] = "on"
    graphs: Annotated[bool, Setting(
        "decode steps as graphs that are captured at start; on an npu alone, without effect elsewhere"
    )] = True
    threads: Annotated[int | None, Setting(
        "CPU threads of the engine; when absent by cores, affinity and CPU quota, as the table at start says", 1, 1024
    )] = None
    fits_threads: bool = False  # not a setting: one thread where `threads` of them are not faster
    check_launches: bool = False  # no setting, but PIXELFERRY_CHECK_LAUNCHES: what an NPU's operators demand is asked


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for at start."""

    model: ModelConfig
    http: HttpConfig = HttpConfig()
    media: MediaConfig = MediaConfig()
    fetch: FetchConfig = FetchConfig()
    shm: ShmConfig = ShmConfig()
    engine: EngineConfig = EngineConfig()
    log: LogConfig = LogConfig()
    traces: TraceConfig = TraceConfig()
    workers: Annotated[int, Setting(
        "tokenizer worker processes, which decode media and build prompts; one more takes chats without media", 1, 256
    )] = 2
    worker: WorkerConfig = WorkerConfig()
    pulse_seconds: Annotated[float, Setting(
        "a worker or engine that is silent and does nothing for so long is killed and started again", 1, 3600, "seconds"
    )] = 20.0
    load_seconds: Annotated[float, Setting(
        "how long a worker or engine that loads may take to get further, by one more tensor or stage; then it is "
        "killed and started again", 1, 86400, "seconds",
    )] = 600.0
    wait_seconds: Annotated[float, Setting(
        "how long a request waits while no worker, or no engine, is up; then it is a 503", 1, 86400, "seconds"
    )] = 60.0
    step_seconds: Annotated[float, Setting(
        "how long one engine step or worker job may take; each token, patch and medium adds to it", 1, 86400, "seconds"
    )] = 60.0
    parent_descriptor: Annotated[int | None, Setting(
        "inherited pipe or socket: once nobody holds its other end, the server ends at once", 3, 1 << 20
    )] = None
    canary_seconds: Annotated[float, Setting(
        "an engine that gave nobody a token for so long is asked for one by the server; 0: never", 0, 3600, "seconds"
    )] = 30.0
    canary_deadline_seconds: Annotated[float, Setting(
        "an engine that owes such a token and does no work for so long is not ready; three times in a row, and it is "
        "started again", 0.1, 3600, "seconds",
    )] = 10.0
