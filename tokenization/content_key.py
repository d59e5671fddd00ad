"""The content key of a medium: a salted SHA-256 of its bytes and of every fact that decides what becomes of them."""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from tokenization.media.source import Source
from tokenization.processor import Measure, MediaHandler


def source_digest(source: Source) -> bytes:
    """SHA-256 of the bytes as encoded. Of a list of pictures each has its length, so that no two lists are alike."""
    found = sha256(b"list" if source.frames else b"file")
    for frame in source.frames:
        found.update(len(frame).to_bytes(8, "little"))
        found.update(frame)
    found.update(source.data)
    return found.digest()


def content_key(salt: bytes, digest: bytes, handler: MediaHandler, measure: Measure) -> bytes:
    """32 bytes. digest: of the medium's source; handler: of its kind; measure: the resolved one.

    A fact that is left out here gives one request another one's embeddings, and nothing tells.
    """
    video = measure.video
    facts: Sequence[object] = (
        salt,
        digest,
        constants_of(handler),
        measure.kind,
        measure.grid,
        measure.shape,
        measure.dtype,
        measure.n_tokens,
        measure.n_delimiters,
        measure.of_video,
        measure.resized,
        None if measure.sound is None else len(measure.sound),
        None if video is None else (video.indices, video.seconds_per_grid, video.size),
    )
    return sha256(msgspec.msgpack.encode(facts)).digest()


def constants_of(handler: MediaHandler) -> str:
    """What a checkpoint's files say of how media of its kind are read, and by which of our classes."""
    return repr((type(handler).__qualname__, sorted(vars(handler).items())))
