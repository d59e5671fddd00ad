"""One tiny checkpoint and one plain clip for the tests of this room."""

from collections.abc import Iterator

import av
import pytest

from configs.checkpoint import Checkpoint
from tests.samples.videos import B_FRAMES, make_clip
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.media.video_decoder import VideoReader
from tokenization.text.bpe import BPETokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(write_qwen2_vl(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def tokenizer(tiny: Checkpoint) -> BPETokenizer:
    return BPETokenizer.from_checkpoint(tiny)


@pytest.fixture(scope="session")
def plain() -> bytes:
    """60 frames, 2 s, a key frame every 12, with B-frames."""
    return make_clip(options=B_FRAMES)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each packet that a decoder is given."""
    fed: list[int] = []
    feed = VideoReader._feed

    def counted(self: VideoReader, packet: "av.Packet[av.VideoStream] | None") -> list[av.VideoFrame]:
        if packet is not None:
            fed.append(packet.size)
        return feed(self, packet)

    monkeypatch.setattr(VideoReader, "_feed", counted)
    yield fed
