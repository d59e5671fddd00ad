"""Media of a request: their words at admission, their bytes and embeddings in the step that needs them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from model.engine.messages import Generate
from model.engine.plan import RequestError
from model.engine.sequence import SegmentRef, Sequence, SequenceMedia
from model.net.multimodal import MultimodalLM
from model.staging.streams import Streams, is_broken
from model.staging.uploads import Upload, Uploads
from shm import SegmentError, WordError, decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tokenization.messages import MediaItem

NUMPY: Mapping[torch.dtype, str] = {torch.uint8: "uint8", torch.float32: "float32"}  # what lies in segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    vocab_size: int
    hidden_size: int
    itemsize: int  # bytes of one element of an embedding
    max_model_len: int
    pad_ids: Mapping[str, int]  # by kind; other kinds this model does not take
    media_shape: Callable[[str, tuple[int, int, int]], tuple[int, ...]]  # kind, grid -> shape of the array
    media_dtype: Callable[[str], torch.dtype]  # kind -> of that array


def take_words(generate: Generate, bounds: Bounds) -> Sequence:
    """Check a request; put pads for its words, in a copy: later code sees no negative id. Raises RequestError."""
    prepared = generate.prepared
    n = len(prepared.input_ids)
    if prepared.input_ids.ndim != 1 or prepared.positions.shape != (3, n):
        raise RequestError(f"{n} ids came with positions of shape {prepared.positions.shape}")
    if not 1 <= n < bounds.max_model_len:
        raise RequestError(f"the prompt has {n} tokens, this engine takes 1 to {bounds.max_model_len - 1}")
    if generate.sampling.max_tokens < 1:
        raise RequestError("max_tokens is below 1")
    if generate.sampling.n < 1:
        raise RequestError("n is below 1")
    if not all(0 <= token < bounds.vocab_size for token, _ in generate.sampling.logit_bias):
        raise RequestError(f"logit_bias holds ids outside [0, {bounds.vocab_size})")
    limit = min(n + generate.sampling.max_tokens, bounds.max_model_len)
    ids = np.empty(limit, np.int64)
    ids[:n] = prepared.input_ids
    taken = np.zeros(n, bool)
    media = tuple(_take(i, item, ids[:n], taken, bounds) for i, item in enumerate(prepared.media))
    if ids[:n].min() < 0 or ids[:n].max() >= bounds.vocab_size:
        raise RequestError(f"the prompt holds ids outside [0, {bounds.vocab_size})")
    return Sequence(
        request_id=generate.request_id, ids=ids, n_prompt=n, limit=limit, n_tokens=n,
        positions=prepared.positions.astype(np.int64), position_delta=prepared.position_delta, media=media,
        embedding_bytes=sum(m.n_tokens for m in media) * bounds.hidden_size * bounds.itemsize,
        sampling=generate.sampling, scores_prompt=generate.scores_prompt, client=generate.client,
    )  # fmt: skip


def _take(i: int, item: MediaItem, ids: np.ndarray, taken: np.ndarray, bounds: Bounds) -> SequenceMedia:
    """One medium: its words decoded, its pads restored in `ids`, its places marked in `taken`."""
    where = f"media item {i}"
    pad = bounds.pad_ids.get(item.kind)
    if pad is None:
        raise RequestError(f"{where}: this model takes no {item.kind}")
    for start, length in item.spans:
        if not (0 <= start and 1 <= length and start + length <= len(ids)):
            raise RequestError(f"{where}: the span ({start}, {length}) does not lie inside {len(ids)} ids")
    places = np.concatenate([np.arange(start, start + length) for start, length in item.spans] or [np.empty(0, int)])
    if len(places) < 2:
        raise RequestError(f"{where}: two words need two pads, it has {len(places)}")
    if len(np.unique(places)) < len(places) or taken[places].any():
        raise RequestError(f"{where}: its spans overlap with each other or with another item's")
    taken[places] = True
    try:
        name = decode_shm_name_from_int64(int(ids[places[0]]))
        shape = decode_shape_from_int64(int(ids[places[1]]))
    except WordError as error:
        raise RequestError(f"{where}: {error}", "media_unavailable") from None
    ids[places[:2]] = pad
    if (ids[places] != pad).any():
        raise RequestError(f"{where}: its spans hold other ids than its pad")
    expected = bounds.media_shape(item.kind, item.grid)
    if shape != expected:
        raise RequestError(f"{where}: an array of shape {shape} came for the grid {item.grid}, which needs {expected}")
    dtype = NUMPY[bounds.media_dtype(item.kind)]
    return SequenceMedia(item=item, segment=SegmentRef(name=name, shape=shape, dtype=dtype))


def read(media: SequenceMedia, root: Path, uploads: Uploads) -> Upload:
    """The medium's array, of the announced shape and dtype, copied out of its segment. Raises RequestError."""
    if media.segment is None:
        raise RuntimeError("a segment is read once")
    segment, opened = media.segment, list[Upload]()

    def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        opened.append(uploads.open(shape, dtype))
        return opened[0].array

    try:
        read_segment(root, segment.name, segment.shape, segment.dtype, empty)
    except SegmentError as error:
        raise RequestError(f"{media.item.kind} not available: {error}", "media_unavailable") from None
    return opened[0]


def encode(media: SequenceMedia, upload: Upload, model: MultimodalLM) -> None:
    """Leave embeddings [n_tokens, hidden] on the device. Raises RequestError where the tower does not make them."""
    with _of_its_request(media.item.kind):
        embeddings = model.encode(media.item.kind, upload.send(), media.item.grid)
    if len(embeddings) != media.n_tokens:
        raise RequestError(f"the {media.item.kind} gave {len(embeddings)} embeddings for {media.n_tokens} pads")
    media.on_device = embeddings


def settle(found: Iterable[SequenceMedia], streams: Streams) -> None:
    """Copy fresh embeddings to host memory on a stream of their own, and wait until they are there.

    What failed on the device until then failed for these media. Raises RequestError, and RuntimeError for a device that
    is broken: nothing runs on it any more.
    """
    for media in found:
        assert media.on_device is not None
        with _of_its_request(media.item.kind):
            media.embeddings = _on_host(media.on_device, streams)


class Kept:
    """Embeddings on the device that lie in host memory, too: each until its prompt is computed, within a budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget  # bytes
        self._media: list[tuple[Sequence, SequenceMedia]] = []
        self._nbytes = 0

    def has_room(self, fresh: Iterable[SequenceMedia]) -> bool:
        """Whether these, of which only the device has embeddings, are within the budget beside what is kept."""
        return self._nbytes + sum(_nbytes(media) for media in fresh) <= self._budget

    def add(self, sequence: Sequence, settled: Iterable[SequenceMedia]) -> None:
        """Media of `sequence`; those beyond the budget are given up at once, and read from host memory."""
        for media in settled:
            if self.has_room([media]):
                self._nbytes += _nbytes(media)
                self._media.append((sequence, media))
            else:
                media.on_device = None

    def trim(self, is_here: Callable[[str], bool]) -> None:
        """Give up those whose prompt is computed or whose request has ended."""
        kept = []
        for sequence, media in self._media:
            if sequence.n_computed < sequence.n_prompt and is_here(sequence.request_id):
                kept.append((sequence, media))
            else:
                self._nbytes -= _nbytes(media)
                media.on_device = None
        self._media = kept


def _nbytes(media: SequenceMedia) -> int:
    return 0 if media.on_device is None else media.on_device.nbytes


@contextmanager
def _of_its_request(kind: str) -> Iterator[None]:
    """What fails inside concerns one request, unless the device is broken."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, RuntimeError) and is_broken(error):
            raise
        # A shape that the tower cannot take, memory that it cannot have.
        raise RequestError(f"the {kind} could not be encoded ({type(error).__name__})") from error


def _on_host(embeddings: torch.Tensor, streams: Streams) -> torch.Tensor:
    if not streams.behind:
        return embeddings
    host = streams.host_memory(embeddings.nbytes).view(embeddings.dtype).view(embeddings.shape)
    with streams.side():
        host.copy_(embeddings, non_blocking=True)
        copied = streams.record()
    copied.wait()
    return host
