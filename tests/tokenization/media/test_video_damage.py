"""Damage costs no more of a clip than it must, and hostile bytes reach nothing."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.videos import (
    B_FRAMES,
    KINDS,
    draw_noisy_number,
    draw_number,
    make_clip,
    make_jpeg,
    make_png,
    make_sound,
    read_numbers,
)
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media.video_decoder import PacketIndex, PacketRun, VideoReader
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import VideoInfo, probe

CAPS = MediaConfig()
SIZE = (56, 112)


def test_a_broken_off_tail_gives_the_frames_before_it(tmp_path: Path) -> None:
    data = make_clip(60, path=tmp_path / "front.mp4", options={**B_FRAMES, "crf": "10"}, draw=draw_noisy_number)
    info = probe(data[: len(data) * 6 // 10], CAPS)
    assert 20 < info.n_frames < 50
    frames, got = read_frames(data[: len(data) * 6 // 10], info, range(info.n_frames), SIZE, CAPS)
    assert len(got) >= info.n_frames - 3
    assert read_numbers(frames)[: len(got) - 3] == list(got)[:-3]


@each_of("kind", ["webm vp9 with hidden frames", "avi mpeg4 with b-frames", "avi mjpeg", "gif", "mpeg-ts h264"])
def test_a_broken_off_tail_of_other_containers(kind: str) -> None:
    data = make_clip(**KINDS[kind])
    part = data[: len(data) * 6 // 10]
    info = probe(part, CAPS)
    assert 10 < info.n_frames < 60
    frames, got = read_frames(part, info, range(info.n_frames), SIZE, CAPS)
    assert len(got) >= info.n_frames - 1
    # Where the last packet there belongs further back, the frames between are missing: times tell the numbers.
    expected = np.rint(info.timestamps * 30).astype(int)[list(got)]
    wrong = int((np.array(read_numbers(frames)) != expected).sum())
    assert wrong <= 1  # of one packet only a part is there


def test_a_packet_that_breaks_off_is_no_frame_where_the_container_says_so() -> None:
    data = make_clip(40, codec="mjpeg", container="avi", pixels="yuvj420p")
    starts = [match.start() for match in re.finditer(rb"00dc", data)][1:41]
    part = data[: starts[30] + 60]
    assert probe(part, CAPS).n_frames == 30


def test_a_tail_that_does_not_decode_is_left_out() -> None:
    """The packets are all there, and hold nothing: the frames before are right, the rest is left out."""
    data = make_clip(60, codec="mjpeg", container="avi", pixels="yuvj420p")
    info = probe(data, CAPS)
    broken = bytearray(data)
    starts = [match.start() for match in re.finditer(rb"00dc", data)][1:61]  # also named before and behind them
    for start in starts[40:]:
        length = int.from_bytes(data[start + 4 : start + 8], "little")
        broken[start + 8 : start + 8 + length] = bytes(length)
    for wanted in (list(range(60)), [0, 10, 39, 40, 59]):
        frames, got = read_frames(bytes(broken), probe(bytes(broken), CAPS), wanted, SIZE, CAPS)
        assert got == tuple(n for n in wanted if n < 40)
        assert read_numbers(frames) == list(got)
    assert info.n_frames == 60
    with pytest.raises(ChatError, match="no frame of the video can be decoded"):
        read_frames(bytes(broken), probe(bytes(broken), CAPS), [45, 50], SIZE, CAPS)


def test_frames_lost_among_threads_are_read_again(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = VideoReader.pick
    asked: list[int] = []

    def losing(self: VideoReader, index: PacketIndex, runs: Sequence[PacketRun]) -> Iterator[tuple[int, av.VideoFrame]]:
        asked.extend(frame for run in runs for frame in run.frames)
        threads = self.stream.codec_context.thread_count
        for number, frame in pick(self, index, runs):
            if threads > 1 and number == 30:
                self.errors += 1
            else:
                yield number, frame

    info = probe(plain, CAPS)
    monkeypatch.setattr(VideoReader, "pick", losing)
    frames, got = read_frames(plain, info, [3, 30, 59], SIZE, CAPS)
    assert got == (3, 30, 59) and read_numbers(frames) == [3, 30, 59]
    assert asked == [3, 30, 59, 30]


def test_a_wrong_bit_spoils_no_frame_before_it() -> None:
    data = make_clip(60, container="mpegts", options={**B_FRAMES, "crf": "10"}, key_every=10, draw=draw_noisy_number)
    broken = bytearray(data)
    middle = len(data) // 2
    broken[middle : middle + 4000] = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes()
    info = probe(bytes(broken), CAPS)
    frames, got = read_frames(bytes(broken), info, range(info.n_frames), SIZE, CAPS)
    assert read_numbers(frames)[:20] == list(range(20))
    assert read_numbers(frames)[-10:] == list(range(50, 60))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a video"),
        (b"\0" * 5000, "not a video"),
        (b"words " * 1000, "not a video"),
        (make_png(), "not a video.*looks like an image, which is sent as 'image_url'"),
        (make_jpeg(5), "not a video.*looks like an image, which is sent as 'image_url'"),
        (make_sound("mp4"), "no video stream"),
        (make_sound("matroska"), "no video stream"),
        (make_sound("adts"), "not a video"),
        (make_clip(5)[:900], "not a video"),
        (make_clip(5, codec="jpeg2000", container="mov"), "codec of the video is not supported"),
    ],
    ids=["empty", "zeros", "text", "png", "jpeg", "m4a", "mka", "aac", "mp4 without its end", "jpeg 2000"],
)
def test_what_is_no_video_is_refused_clearly(data: bytes, message: str, decoded: list[int]) -> None:
    with pytest.raises(ChatError, match=message) as caught:
        probe(data, CAPS)
    assert not re.search(r"0x|<|/(?!chat )|\[Errno", str(caught.value))
    assert not decoded


def test_a_sound_with_a_cover_is_no_video() -> None:
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        cover = output.add_stream("mjpeg", rate=1)
        assert isinstance(cover, av.VideoStream)
        cover.width, cover.height, cover.pix_fmt = 160, 96, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        output.mux(cover.encode(av.VideoFrame.from_ndarray(draw_number(1, 160, 96), format="rgb24")))
        output.mux(cover.encode())
    with pytest.raises(ChatError, match="no video stream"):
        probe(sink.getvalue(), CAPS)


@each_of(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        '<?xml version="1.0"?><MPD><Period><AdaptationSet><BaseURL>{path}</BaseURL></AdaptationSet></Period></MPD>',
    ],
    ids=["hls", "concat", "sdp", "dash"],
)
def test_a_playlist_opens_nothing(playlist: str, tmp_path: Path, plain: bytes) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(plain)
    with pytest.raises(ChatError, match="not a video") as caught:
        probe(playlist.format(path=secret).encode(), CAPS)
    assert "secret" not in str(caught.value)


def test_a_movie_that_names_another_file_does_not_reach_it(tmp_path: Path, plain: bytes) -> None:
    """QuickTime's data reference: the samples are said to lie in another file."""
    (tmp_path / "other.mp4").write_bytes(plain)
    at = plain.index(b"url \0\0\0\1")
    lied = bytearray(plain)
    lied[at + 7] = 0  # not in this file
    info: VideoInfo | None = None
    try:
        info = probe(bytes(lied), CAPS)
    except ChatError as error:
        assert "other" not in str(error)
    assert info is None or info.n_frames == 60  # read from these bytes, or refused


def test_random_damage_raises_nothing_but_video_errors(plain: bytes) -> None:
    rng = np.random.default_rng(7)
    small = [
        make_clip(12),
        make_clip(12, codec="libvpx", container="webm"),
        make_clip(12, codec="gif", container="gif", pixels="rgb8"),
        make_clip(12, container="mpegts"),
        make_clip(12, codec="mpeg4", container="avi"),
    ]
    read = 0
    for _ in range(60):
        broken = bytearray(small[rng.integers(len(small))])
        for place in rng.integers(0, len(broken), 8):
            broken[place] = rng.integers(256)
        try:
            info = probe(bytes(broken), CAPS)
            read += len(read_frames(bytes(broken), info, range(min(info.n_frames, 4)), (28, 28), CAPS)[1])
        except ChatError as error:
            assert not re.search(r"0x|<|/|\[Errno", error.message)
    assert read
