"""Media of a step: read out of their segments and encoded. What fails costs the request that it belongs to."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.engine.plan import RequestError
from model.engine.ranks.link import MediaFailures, RankLink, all_failures
from model.engine.sequence import EncoderInput, ItemKey, StoreKey
from model.net.multimodal import MultimodalLM
from model.staging.embeddings import EmbeddingStore
from model.staging.streams import is_broken
from model.staging.transfers import Upload, Uploads
from shm import SegmentError, read_segment

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Encoded:
    """What a step's media came to."""

    read: list[ItemKey] = field(default_factory=list)  # whose segments were read to their end
    filled: list[StoreKey] = field(default_factory=list)  # that have embeddings
    failed: dict[ItemKey, RequestError] = field(default_factory=dict)
    ended: dict[str, RequestError] = field(default_factory=dict)  # requests that go on no further

    def fail(self, item: EncoderInput, error: RequestError) -> None:
        """The first error of a request is told."""
        request_id = item.key[0]
        self.failed[item.key] = error
        if request_id not in self.ended:
            self.ended[request_id] = error
            _log.warning("request %s failed: %s", request_id, error, exc_info=error.__cause__)


class MediaEncoder:
    """Fills a store with embeddings."""

    def __init__(
        self, model: MultimodalLM, root: Path, uploads: Uploads, store: EmbeddingStore[StoreKey],
        link: RankLink | None = None, *, shares: bool = False,
    ) -> None:  # fmt: skip
        """root: the directory of the segments.

        link: to other ranks, each of which gets all embeddings: each makes all of them, or with `shares` a part.
        """
        self._model, self._root, self._uploads, self._store = model, root, uploads, store
        self._link, self._shares, self._ranks = link, shares, model.ops.ranks

    def run(self, items: Sequence[EncoderInput], host_only: Collection[StoreKey]) -> Encoded:
        """One call for each kind. host_only: items of which the device keeps nothing.

        A call that fails is repeated item by item, so that a bad medium costs its own request. Raises RuntimeError
        where the device is broken.
        """
        done = Encoded()
        link, mine, shares = self._link, items, list[list[EncoderInput]]()
        if link is not None and self._shares and len(items) > 1:
            shares = dealt(items, link.n)
            mine = shares[link.rank]
        for kind in dict.fromkeys(item.kind for item in mine):
            sent = self._read([item for item in mine if item.kind == kind], done)
            try:
                self._encode(sent, host_only, done)
            except RequestError as error:
                if len(sent) == 1:
                    done.fail(sent[0][0], error)
                else:
                    self._repeat(sent, host_only, done)
        if link is not None:
            self._agree(link, items, done)
            if shares:
                made = [[item for item in share if item.key not in done.failed] for share in shares]
                self._exchange(link.rank, made, host_only)
        return done

    def _agree(self, link: RankLink, items: Sequence[EncoderInput], done: Encoded) -> None:
        """What failed on any rank has failed here, too: the forward pass reads the same on all."""
        failed = tuple((key, error.message, error.code) for key, error in done.failed.items())
        for key, message, code in link.agree(MediaFailures(failed), all_failures).failed:
            done.failed.setdefault(key, RequestError(message, code))
        made = [item for item in items if item.key not in done.failed]
        self._store.free(set(done.filled).difference(item.stored for item in made))
        done.read, done.filled = [item.key for item in made], [item.stored for item in made]

    def _exchange(self, rank: int, made: Sequence[Sequence[EncoderInput]], host_only: Collection[StoreKey]) -> None:
        """Take what the others made, by one gather. made: items of each rank, by which all know how long theirs are."""
        longest, width = max(sum(item.n_tokens for item in share) for share in made), self._model.media_width
        if not longest:
            return
        parts = [self._store.part(item.stored, 0, item.n_tokens) for item in made[rank]]
        sent = torch.zeros((longest, width), dtype=self._model.dtype, device=self._model.device)
        if parts:
            torch.cat(parts, out=sent[: sum(map(len, parts))])
        found = self._ranks.all_gather(sent.view(1, -1)).view(len(made), longest, width)
        fresh: dict[StoreKey, Tensor] = {}
        for share, rows in zip(made, found, strict=True):
            parts = rows[: sum(item.n_tokens for item in share)].split([item.n_tokens for item in share])
            if share is not made[rank]:
                fresh |= {item.stored: part for item, part in zip(share, parts, strict=True)}
        self._store.put(fresh, host_only)

    def _repeat(
        self, sent: Sequence[tuple[EncoderInput, Tensor]], host_only: Collection[StoreKey], done: Encoded
    ) -> None:
        """Encode each medium that has no embeddings yet in a call of its own."""
        for item, array in sent:
            try:
                self._encode([(item, array)], host_only, done)
            except RequestError as error:
                done.fail(item, error)

    def _read(self, items: Sequence[EncoderInput], done: Encoded) -> list[tuple[EncoderInput, Tensor]]:
        """Read the arrays of media to the device. Those of requests that failed are left out."""
        sent = []
        for item in items:
            if item.key[0] in done.ended:
                done.fail(item, done.ended[item.key[0]])
                continue
            try:
                sent.append((item, read(item, self._root, self._uploads).send()))
                done.read.append(item.key)
            except RequestError as error:
                done.fail(item, error)
        return sent

    def _encode(
        self, sent: Sequence[tuple[EncoderInput, Tensor]], host_only: Collection[StoreKey], done: Encoded
    ) -> None:
        """One call. Raises RequestError for what is refused of it; a device that fails later ends the engine."""
        if not sent:
            return
        kind = sent[0][0].kind
        with self._of_its_request(kind):
            made = self._model.encode(kind, [array for _, array in sent], [item.grid for item, _ in sent])
        fits = {}
        for (item, _), embeddings in zip(sent, made, strict=True):
            if len(embeddings) == item.n_tokens:
                fits[item.stored] = embeddings
            else:
                said = f"the {kind} gave {len(embeddings)} embeddings for {item.n_tokens} placeholders"
                done.fail(item, RequestError(said))
        with self._of_its_request(kind):
            self._store.put(fits, host_only)
        done.filled += fits

    @contextmanager
    def _of_its_request(self, kind: str) -> Iterator[None]:
        """What fails inside concerns one request, unless the device is broken."""
        try:
            yield
        except (RuntimeError, ValueError, IndexError) as error:
            if is_broken(error, behind=self._uploads.behind):
                raise
            # A shape that the tower cannot take, memory that it cannot have.
            raise RequestError(f"the {kind} could not be encoded ({type(error).__name__})") from error


def dealt(items: Sequence[EncoderInput], n: int) -> list[list[EncoderInput]]:
    """The share of each of n ranks, as even as it gets by the largest first. It is the same on all ranks."""
    shares: list[list[EncoderInput]] = [[] for _ in range(n)]
    sizes = [0] * n
    for item in sorted(items, key=lambda item: -item.n_tokens):
        rank = sizes.index(min(sizes))
        shares[rank].append(item)
        sizes[rank] += item.n_tokens
    return shares


def read(item: EncoderInput, root: Path, uploads: Uploads) -> Upload:
    """The medium's array, of the announced shape and dtype, copied out of its segment. Raises RequestError."""
    segment, opened = item.segment, list[Upload]()
    if segment is None:
        raise RequestError(f"{item.kind} not available: it came without its array")

    def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        opened.append(uploads.open(shape, dtype))
        return opened[0].array

    try:
        read_segment(root, segment.name, segment.shape, segment.dtype, empty)
    except SegmentError as error:
        raise RequestError(f"{item.kind} not available: {error}", "media_unavailable") from None
    return opened[0]
