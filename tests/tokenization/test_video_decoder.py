"""Only what is needed is decoded, damage costs no more than it must, and hostile bytes reach nothing."""

import io
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from tests.clips import (
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
from tokenization.video import VideoInfo, probe, read_frames
from tokenization.video_decoder import ClipReader, open_clip
from tokenization.video_sampling import PacketIndex, Run, VideoCaps, VideoError, plan_runs

CAPS = VideoCaps()
SIZE = (56, 112)


@pytest.fixture(scope="module")
def plain() -> bytes:
    """60 frames, 2 s, a key frame every 12, with B-frames."""
    return make_clip(options=B_FRAMES)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each packet that a decoder is given."""
    fed: list[int] = []
    feed = ClipReader._feed

    def counted(self: ClipReader, packet: "av.Packet[av.VideoStream] | None") -> list[av.VideoFrame]:
        if packet is not None:
            fed.append(packet.size)
        return feed(self, packet)

    monkeypatch.setattr(ClipReader, "_feed", counted)
    yield fed


# ---- how much is decoded


def test_a_probe_decodes_one_frame(plain: bytes, decoded: list[int]) -> None:
    probe(plain, CAPS)
    assert len(decoded) == 1


def test_only_the_way_to_the_wanted_frames_is_decoded(plain: bytes, decoded: list[int]) -> None:
    info = probe(plain, CAPS)
    decoded.clear()
    frames, _ = read_frames(plain, info, [1, 38], SIZE, CAPS)
    assert read_numbers(frames) == [1, 38]
    runs = plan_runs(info.index, [1, 38])
    assert len(decoded) == sum(run.stop - run.start + 1 for run in runs) <= 12


def test_frames_that_nothing_depends_on_are_not_decoded() -> None:
    data = make_clip(60, options=B_FRAMES, key_every=60)
    index = probe(data, CAPS).index
    runs = plan_runs(index, [50])
    with open_clip(data, CAPS, study=True) as clip:
        frames = list(clip.decode(index, runs))
    assert runs[0].stop - runs[0].start > 40
    assert len(frames) < 30


def test_too_much_decoding_is_refused_before_it_begins(plain: bytes, decoded: list[int]) -> None:
    info = probe(plain, CAPS)
    decoded.clear()
    for caps in (VideoCaps(max_decoded_frames=11), VideoCaps(max_decoded_pixels=11 * 160 * 96)):
        with pytest.raises(VideoError, match="at most 11 are allowed"):
            read_frames(plain, info, [11], SIZE, caps)
        read_frames(plain, info, [12], SIZE, caps)
    assert len(decoded) == 2  # the key frame 12, twice


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        (VideoCaps(max_source_pixels=160 * 96 - 1), "160 x 96 = 15360 pixels a frame, at most 15359"),
        (VideoCaps(max_duration_s=1.9), "lasts 2 s, at most 2 s"),
        (VideoCaps(max_source_frames=59), "more than 59 frames"),
    ],
)
def test_headers_over_the_caps_are_refused_before_decoding(
    plain: bytes, decoded: list[int], caps: VideoCaps, message: str
) -> None:
    with pytest.raises(VideoError, match=message):
        probe(plain, caps)
    assert not decoded


def test_a_size_that_lies_in_the_header_is_refused_at_once(plain: bytes) -> None:
    """The container says 65535 x 65535; nothing of that size is ever made."""
    entry = plain.index(b"avc1", plain.index(b"stsd"))
    lied = plain[: entry + 28] + b"\xff\xff" * 2 + plain[entry + 32 :]
    begin = time.perf_counter()
    with pytest.raises(VideoError, match="65535 x 65535"):
        probe(lied, CAPS)
    assert time.perf_counter() - begin < 0.1


def test_a_stream_that_is_larger_than_its_header_says_is_not_decoded(plain: bytes) -> None:
    """The container says 16 x 16, the stream is 160 x 96: the decoder itself is held to the cap."""
    entry = plain.index(b"avc1", plain.index(b"stsd"))
    lied = plain[: entry + 28] + b"\0\x10" * 2 + plain[entry + 32 :]
    assert probe(lied, CAPS).width == 160
    with pytest.raises(VideoError):
        probe(lied, VideoCaps(max_source_pixels=160 * 96 - 1))


def test_a_packet_without_a_picture_shows_the_one_before_it(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second field, a repeat; but never across a gap, and not at the end of what is damaged."""
    index = PacketIndex(packets=np.arange(30), keys=(0, 10, 20), key_frames=(0, 10, 20), n_packets=30)
    runs = plan_runs(index, [1, 3, 15, 17, 26])
    assert len(runs) == 3
    pictures = {}
    for number in (0, 2, 3, 17, 25):  # none of packet 1; none at all in run 2 before 17; none of packet 26
        pictures[number] = av.VideoFrame(16, 16, "rgb24")
        pictures[number].pts = number
    monkeypatch.setattr(ClipReader, "decode", lambda self, index, runs: iter(pictures.values()))
    with open_clip(plain, CAPS) as clip:
        assert list(clip.pick(index, runs)) == [
            (1, pictures[0]),
            (3, pictures[3]),
            (17, pictures[17]),
            (26, pictures[25]),
        ]
        clip.errors = 1
        assert [number for number, _ in clip.pick(index, runs)] == [1, 3, 17]


def test_a_file_that_breaks_in_the_library_ends_there(plain: bytes) -> None:
    class Broken:
        def demux(self, stream: av.VideoStream) -> "Iterator[av.Packet[av.VideoStream]]":
            yield from packets[:2]
            raise IndexError("list index out of range")

    with open_clip(plain, CAPS) as clip:
        packets = list(clip.packets())
        clip._source = Broken()  # type: ignore[assignment]
        assert list(clip.packets()) == packets[:2]


# ---- damage


def test_a_broken_off_tail_gives_the_frames_before_it(tmp_path: Path) -> None:
    data = make_clip(60, path=tmp_path / "front.mp4", options={**B_FRAMES, "crf": "10"}, draw=draw_noisy_number)
    info = probe(data[: len(data) * 6 // 10], CAPS)
    assert 20 < info.n_frames < 50
    frames, got = read_frames(data[: len(data) * 6 // 10], info, range(info.n_frames), SIZE, CAPS)
    assert len(got) >= info.n_frames - 3
    assert read_numbers(frames)[: len(got) - 3] == list(got)[:-3]


@pytest.mark.parametrize(
    "kind", ["webm vp9 with hidden frames", "avi mpeg4 with b-frames", "avi mjpeg", "gif", "mpeg-ts h264"]
)
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
    with pytest.raises(VideoError, match="no frame of the video can be decoded"):
        read_frames(bytes(broken), info, [45, 50], SIZE, CAPS)


def test_frames_lost_among_threads_are_read_again(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = ClipReader.pick
    asked: list[int] = []

    def losing(self: ClipReader, index: PacketIndex, runs: Sequence[Run]) -> Iterator[tuple[int, av.VideoFrame]]:
        asked.extend(frame for run in runs for frame in run.frames)
        threads = self.stream.codec_context.thread_count
        for number, frame in pick(self, index, runs):
            if threads > 1 and number == 30:
                self.errors += 1
            else:
                yield number, frame

    info = probe(plain, CAPS)
    monkeypatch.setattr(ClipReader, "pick", losing)
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
        (make_png(), "not a video"),
        (make_jpeg(5), "not a video"),
        (make_sound("mp4"), "no video stream"),
        (make_sound("matroska"), "no video stream"),
        (make_sound("adts"), "not a video"),
        (make_clip(5)[:900], "not a video"),
        (make_clip(5, codec="jpeg2000", container="mov"), "codec of the video is not supported"),
    ],
    ids=["empty", "zeros", "text", "png", "jpeg", "m4a", "mka", "aac", "mp4 without its end", "jpeg 2000"],
)
def test_what_is_no_video_is_refused_clearly(data: bytes, message: str, decoded: list[int]) -> None:
    with pytest.raises(VideoError, match=message) as caught:
        probe(data, CAPS)
    assert not re.search(r"0x|<|/|\[Errno", str(caught.value))
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
    with pytest.raises(VideoError, match="no video stream"):
        probe(sink.getvalue(), CAPS)


@pytest.mark.parametrize(
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
    with pytest.raises(VideoError, match="not a video") as caught:
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
    except VideoError as error:
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
        except VideoError as error:
            assert not re.search(r"0x|<|/|\[Errno", error.message)
    assert read
