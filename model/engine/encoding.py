"""Media of a step: read out of their segments and encoded. What fails costs the request that it belongs to."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model.engine.plan import RequestError
from model.engine.sequence import EncoderInput, ItemKey
from model.net.multimodal import MultimodalLM
from model.staging.embeddings import EmbeddingStore
from model.staging.streams import is_broken
from model.staging.uploads import Upload, Uploads
from shm import SegmentError, read_segment

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Encoded:
    """What came of a step's media."""

    read: list[ItemKey] = field(default_factory=list)  # whose segments were read to their end
    filled: list[ItemKey] = field(default_factory=list)  # that have embeddings
    failed: dict[ItemKey, RequestError] = field(default_factory=dict)


class MediaEncoder:
    """Fills a store with embeddings."""

    def __init__(self, model: MultimodalLM, root: Path, uploads: Uploads, store: EmbeddingStore[ItemKey]) -> None:
        """root: the directory of the segments."""
        self._model, self._root, self._uploads, self._store = model, root, uploads, store

    def run(self, items: Sequence[EncoderInput], host_only: Collection[ItemKey]) -> Encoded:
        """host_only: items of which the device keeps nothing. Raises RuntimeError where the device is broken."""
        done = Encoded()
        ended: dict[str, RequestError] = {}  # requests that go on no further
        for item in items:
            request_id = item.key[0]
            if request_id in ended:
                done.failed[item.key] = ended[request_id]
                continue
            try:
                upload = read(item, self._root, self._uploads)
                done.read.append(item.key)
                self._encode(item, upload, host_only)
                done.filled.append(item.key)
            except RequestError as error:
                done.failed[item.key] = ended[request_id] = error
                _log.warning("request %s failed: %s", request_id, error, exc_info=error.__cause__)
        return done

    def _encode(self, item: EncoderInput, upload: Upload, host_only: Collection[ItemKey]) -> None:
        """Raises RequestError where the tower does not make what the prompt needs.

        It is awaited: what failed on the device until then failed for this medium.
        """
        with _of_its_request(item.kind):
            embeddings = self._model.encode(item.kind, upload.send(), item.grid)
        if len(embeddings) != item.n_tokens:
            raise RequestError(f"the {item.kind} gave {len(embeddings)} embeddings for {item.n_tokens} pads")
        with _of_its_request(item.kind):
            self._store.put({item.key: embeddings}, host_only)


def read(item: EncoderInput, root: Path, uploads: Uploads) -> Upload:
    """The medium's array, of the announced shape and dtype, copied out of its segment. Raises RequestError."""
    segment, opened = item.segment, list[Upload]()

    def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        opened.append(uploads.open(shape, dtype))
        return opened[0].array

    try:
        read_segment(root, segment.name, segment.shape, segment.dtype, empty)
    except SegmentError as error:
        raise RequestError(f"{item.kind} not available: {error}", "media_unavailable") from None
    return opened[0]


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
