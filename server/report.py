"""What the server says about itself at start: configuration, limits, memory, in one short table. Decides nothing."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from configs.fetch import EVERY_HOST, FetchConfig
from configs.serve import GIB, KIB, MEGA, MIB, HttpConfig, MediaConfig, ModelConfig, ServeConfig
from configs.settings import EMBEDDED_MODEL
from configs.version import build
from model.engine.messages import EngineReady
from model.family import PixelBounds
from server.requests.model_card import ModelCard
from server.thread_limit import Threads
from tokenization.video_budget import PARTS_OF_LENGTH, SHARE_OF_LENGTH

_PREFIX_CACHE = {
    "on": "on: free blocks of the KV cache keep what they hold for prompts to come",
    "off": "off: the KV cache keeps nothing of a request that has ended",
}


def size(nbytes: int) -> str:
    """Bytes as people read them."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<22} {value}" for name, value in rows)])


def _source(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """The exact revision of a model that came from a hub."""
    if model.wanted is not None:
        yield "from", f"{model.wanted} ({model.hub})"


def pool_note(asked: int, pool_bytes: int) -> str:
    """How much shared memory there will be, and what to do where the machine has less than was asked for."""
    if pool_bytes == asked:
        return f"at most {size(asked)}"
    return f"at most {size(pool_bytes)}, all there is, instead of --shm-mib's {size(asked)} (docker run --shm-size)"


def describe(config: ServeConfig, card: ModelCard, root: Path, pool_bytes: int, threads: Threads) -> str:
    """Configuration and limits, before anything is loaded. `pool_bytes`: what the pool under `root` may hold."""
    roots = ", ".join(str(path) for path in config.media.roots) or "none (local paths are refused)"
    defaults = card.defaults
    drawn = "greedy" if not defaults.temperature else (
        f"temperature {defaults.temperature:g}, top_p {defaults.top_p:g}, top_k {defaults.top_k or 'off'}"
        + (f", min_p {defaults.min_p:g}" if defaults.min_p else "")
    )  # fmt: skip
    note = " (embedded default: a small demo model, docs/demo-model.md)" * (config.model.path == EMBEDDED_MODEL)
    if defaults.repetition_penalty != 1:
        drawn += f", repetition_penalty {defaults.repetition_penalty:g}"
    return "\n".join(
        [
            table(
                "Pixelferry",
                [
                    ("version", build()),
                    ("model", f"{config.model.path}{note}"),
                    *_source(config.model),
                    ("served as", f"{card.name} ({card.family})"),
                    ("takes", ", ".join(["text", *sorted(card.modalities)])),
                    *((what, f"from {origin}") for what, origin in card.origins.items()),
                    ("sampling by default", drawn),
                    ("device, dtype", f"{config.engine.device}, {config.engine.dtype} (as asked for)"),
                    (
                        "threads, workers",
                        f"at most {threads.n} ({threads.reason}), {config.workers}, one for texts, one for pictures"
                        f"{', one process that fetches' if config.fetch.domains else ''}",
                    ),
                    *_ranks(config, threads),
                    ("shared memory", f"{root}, {pool_note(config.shm.pool_bytes, pool_bytes)}"),
                    ("media from", roots),
                    ("media by URL from", _hosts(config.fetch)),
                    ("API keys", _keys(config.http)),
                ],
            ),
            table(
                "limits",
                [
                    ("--max-model-len", f"{card.max_model_len} tokens, prompt and answer"),
                    ("--max-seqs", f"{config.engine.max_seqs} requests in the engine"),
                    *_beside_requests(config),
                    ("--max-requests", f"{config.http.max_requests} unfinished requests; the next one is a 429"),
                    ("--max-n", f"{config.http.max_n} answers to one chat"),
                    ("--max-asked-tokens", f"{config.http.max_asked_tokens} that one body may ask for"),
                    ("--max-asked-mib", size(config.http.max_asked_bytes) + " that one body may ask for"),
                    ("--max-items", f"{config.media.max_items} media in one prompt"),
                    ("--max-pixels", _image_pixels(config.media.max_pixels, card.pixels)),
                    ("--max-source-pixels", f"{config.media.max_source_pixels} pixels of one image as sent"),
                    ("--max-effort-mpixels", _effort(config.media)),
                    ("--max-file-mib", size(config.media.max_file_bytes) + " of one media file"),
                    *_longest(config.media, card),
                    ("--worker-memory-mib", _worst(config)),
                    ("--worker-keep-mib", f"{size(config.worker.keep_bytes)} that a worker keeps between jobs"),
                    *_connections(config.http),
                ],
            ),
        ]
    )


def _ranks(config: ServeConfig, threads: Threads) -> Iterator[tuple[str, str]]:
    """What is said of the whole server, and what each of its ranks has of it."""
    if (n := config.engine.tensor_parallel) == 1:
        return
    cache = config.engine.kv_cache_bytes
    parts = [
        f"{size(config.engine.embedding_bytes // n)} of --embedding-mib",
        *([] if cache is None else [f"{size(cache // n)} of --kv-cache-mib"]),
        f"on a CPU {threads.of_each(n)} of {threads.n} threads",
    ]
    yield "--tensor-parallel", f"{n} processes, each with a part of the model, {', '.join(parts)}"


def _beside_requests(config: ServeConfig) -> Iterator[tuple[str, str]]:
    yield "--forms-mib", size(config.engine.forms_bytes) + " of forms, half for running answers and half to compile"
    yield "--encoder-cache", _kept(config)
    yield "--prefix-cache", _PREFIX_CACHE[config.engine.prefix_cache]


def _connections(http: HttpConfig) -> Iterator[tuple[str, str]]:
    yield "--max-body-mib", size(http.max_body_bytes) + " of one request body"
    yield "--max-inflight-mib", size(http.max_inflight_bytes) + " of all request bodies"
    yield "--max-head-kib", size(http.max_head_bytes) + " of one request's head"
    yield "--max-unread-mib", size(http.max_unread_bytes) + " of answers that nobody has taken"
    yield "--max-connections", f"{http.max_connections} open connections"


def _effort(media: MediaConfig) -> str:
    most, free = media.max_effort_pixels // MEGA, media.free_effort_pixels // MEGA
    return f"{most} megapixels of decoding for one request, {min(free, most)} where its media have few bytes"


def _worst(config: ServeConfig) -> str:
    """What one worker may take, and all of them together with those for texts and for pictures."""
    each, n = config.worker.memory_bytes, config.workers + 2
    most = f"{n} with those for texts and pictures have at most {size(n * each)}"
    return f"{size(each)} of private memory of one worker; {most}"


def _kept(config: ServeConfig) -> str:
    """What stays after a request, and for whom."""
    if config.engine.encoder_cache == "off":
        return "off: the same medium is encoded again"
    has_keys = config.http.api_keys or config.http.api_key_file
    whom = "each API key alone" if has_keys and config.http.cache_scope == "key" else "all clients"
    n = config.engine.tensor_parallel
    where = "--embedding-mib" if n == 1 else f"--embedding-mib / {n}, for each rank keeps all of them"
    return f"encoder outputs stay for {whom}, within {size(config.engine.embedding_bytes // n)} ({where})"


def _hosts(fetch: FetchConfig) -> str:
    if not fetch.domains:
        return "none (--allowed-media-domain)"
    hosts = ", ".join("all public hosts" if domain == EVERY_HOST else domain for domain in fetch.domains)
    networks = f", also at {', '.join(fetch.networks)}" if fetch.networks else ""
    return f"{hosts}{networks}{f', through {fetch.proxy}' if fetch.proxy else ''}"


def _keys(http: HttpConfig) -> str:
    """How many there are, or where they stand; never one of them."""
    given = [str(len(http.api_keys))] if http.api_keys else []
    given += [f"those in {http.api_key_file}"] if http.api_key_file else []
    limits = [f"{http.key_requests_per_minute} requests a minute"] if http.key_requests_per_minute else []
    limits += [f"{http.key_concurrency} at once"] if http.key_concurrency else []
    told = f"; each may make {', '.join(limits)}" if limits else ""
    return " and ".join(given) + told if given else "none: whoever reaches the address may ask"


def _image_pixels(most: int, own: PixelBounds | None) -> str:
    """The bound, beside the checkpoint's own."""
    return f"{most} pixels of one image or frame after resizing" + (_beside(most, own.image) if own else "")


def _beside(most: int, own: int) -> str:
    return f"; the checkpoint's own bound is {own}" + (", which this lowers" if most < own else "")


def _video_budget(most: int, own: int, card: ModelCard) -> str:
    """What one video has in all, and what the model's length leaves of it."""
    assert card.pixels is not None
    budget, token = min(own, most), card.pixels.token
    text = f"{budget // token} tokens ({budget} pixels), or a request's total_pixels"
    if most < own:
        text += f"; --max-video-pixels lowers it from {own} pixels"
    left = card.max_model_len * SHARE_OF_LENGTH // PARTS_OF_LENGTH
    if left < budget // token:
        text += f"; without total_pixels --max-model-len leaves all videos of a prompt at most {left} tokens"
    return text


def _longest(media: MediaConfig, card: ModelCard) -> Iterator[tuple[str, str]]:
    """How long and how large a video and a sound may be, of a model that takes them."""
    modalities = card.modalities
    if "video" in modalities:
        yield "--max-video-seconds", f"{media.max_video_seconds:g} s of one video"
        yield "--max-frames", f"{media.max_frames} frames of one video that reach the model"
        yield "--max-decoded-frames", f"{media.max_decoded_frames} frames of one video decoded for those"
        yield "--max-video-pixels", f"{media.max_video_pixels} pixels of all frame pairs of one video after resizing"
        if card.pixels is not None and card.pixels.video is not None:
            frame = min(media.max_pixels, card.pixels.frame)
            yield "frame of a video", f"{frame} pixels{_beside(frame, card.pixels.frame)}"
            yield "video budget", _video_budget(media.max_video_pixels, card.pixels.video, card)
    if "audio" in modalities:
        yield "--max-audio-seconds", f"{media.max_audio_seconds:g} s of one sound, or of one video's"


def describe_engine(ready: EngineReady, max_model_len: int, pool_bytes: int) -> str:
    """What the engine got, once it is ready: what takes memory, how much, and the setting behind it."""
    tokens = ready.kv_blocks * ready.block_size
    memory = [*ready.memory, ("shared memory, at most", pool_bytes, "--shm-mib")]
    rows = [(line, f"{size(nbytes):<12} {setting}") for line, nbytes, setting in memory]
    cache = f"{tokens} tokens in {ready.kv_blocks} blocks of {ready.block_size}"
    if tokens < max_model_len:
        cache += f"; this is less than --max-model-len, so one request may have {tokens}"
    computes = [("threads", ready.threads)] if ready.threads else []
    where = f"{ready.ranks} ranks from {ready.device} on, each as the first" if ready.ranks > 1 else ready.device
    return table(f"engine on {where}, {ready.dtype}", [("KV cache", cache), *computes, *rows])
