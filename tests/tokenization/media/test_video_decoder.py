"""Only what is needed of a clip is decoded."""

import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.container import InputContainer

from configs.serve import MediaConfig
from tests.samples.hostile_media import film_of, padded_jpeg
from tests.samples.hostile_mp4 import shared_samples, shown_last_to_first
from tests.samples.videos import B_FRAMES, make_clip, read_numbers
from tests.tokenization.media.test_matroska_tracks import element, number
from tokenization import worker_memory
from tokenization.chat.errors import ChatError
from tokenization.media.containers.opening import open_container
from tokenization.media.video_decoder import THREADS, PacketIndex, VideoReader, open_video, plan_runs
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import probe

CAPS = MediaConfig()
SIZE = (56, 112)


# ---- how much is decoded


def test_a_probe_decodes_one_frame(plain: bytes, decoded: list[int]) -> None:
    probe(plain, CAPS)
    assert len(decoded) == 1


def test_times_that_call_the_last_packet_the_first_are_not_believed(decoded: list[int]) -> None:
    data = shown_last_to_first(60)
    info = probe(data, CAPS)
    assert info.index.packets[0] == 0 and len(decoded) == 1
    assert read_numbers(read_frames(data, info, range(60), SIZE, CAPS)[0]) == list(range(60))


def test_packets_that_share_their_bytes_are_refused(decoded: list[int]) -> None:
    """A film of 26 KB whose packets hold more than a megabyte above that."""
    assert probe(shared_samples(80), CAPS).n_frames == 80
    decoded.clear()
    with pytest.raises(ChatError, match="more bytes than its file"):
        probe(shared_samples(100), CAPS)
    assert not decoded


@pytest.mark.parametrize("n", [32, 33])
def test_a_packet_of_many_frames_is_refused(n: int) -> None:
    """AV1: a decoder gives all of them at once. 29 KB took 9 s and 5.6 GiB."""
    stored = Path(__file__).with_name("av1.mkv").read_bytes()
    key = bytes(next(iter(open_video(stored, CAPS).packets())))
    cluster = element("1f43b675", number("e7", 0) + element("a3", b"\x81" + struct.pack(">hB", 0, 0x80) + key * n))
    data = stored[: stored.index(bytes.fromhex("1f43b675"))] + cluster
    if n == 32:
        assert probe(data, CAPS).n_frames == 1
    else:
        with pytest.raises(ChatError, match="more than 32 frames"):
            probe(data, CAPS)


@pytest.mark.parametrize("container", ["avi", "mov", "matroska"])
def test_a_packet_of_many_scans_is_refused(container: str, decoded: list[int]) -> None:
    """Motion JPEG: a decoder passes over the whole picture for each, in one call. 312 KB took 5 s."""
    assert probe(film_of(padded_jpeg(64, 48, 64), container, width=64, height=48), CAPS).n_frames == 1
    decoded.clear()
    for jpeg in (padded_jpeg(64, 48, 65), padded_jpeg(64, 48, 5000)):
        with pytest.raises(ChatError, match="more than 64 scans"):
            probe(film_of(jpeg, container, width=64, height=48), CAPS)
    assert not decoded


def test_dav1d_has_one_thread_and_the_others_several(plain: bytes) -> None:
    """With several it now and then never comes back from being freed while frames are inside."""
    av1 = open_video(Path(__file__).with_name("av1.mkv").read_bytes(), CAPS)
    assert (av1.codec, av1.stream.codec_context.thread_count) == ("libdav1d", 1)
    assert open_video(plain, CAPS).stream.codec_context.thread_count == THREADS > 1


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
    frames = list(open_video(data, CAPS).decode(index, runs))
    assert runs[0].stop - runs[0].start > 40
    assert len(frames) < 30


def test_too_much_decoding_is_refused_before_it_begins(
    plain: bytes, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = probe(plain, CAPS)
    decoded.clear()
    for caps, full in ((MediaConfig(max_decoded_frames=11), 160 * 96), (MediaConfig(max_decoded_frames=22), 80 * 96)):
        monkeypatch.setattr("tokenization.media.video_frames._FULL_HD", full)  # frames above it count as more
        with pytest.raises(ChatError, match="at most 11 are allowed"):
            read_frames(plain, info, [11], SIZE, caps)
        read_frames(plain, info, [12], SIZE, caps)
    assert len(decoded) == 2  # the key frame 12, twice


def test_frames_that_grow_on_the_way_are_counted_where_they_are_decoded(plain: bytes, decoded: list[int]) -> None:
    """No header tells of them: what was planned for small frames ends where it is passed."""
    info, size = probe(plain, CAPS), 160 * 96
    read_frames(plain, info, [0, 11], SIZE, CAPS, max_effort=3 * size)
    for most, packets in ((2 * size - 1, 13), (0, 8)):
        decoded.clear()
        with pytest.raises(ChatError, match="grow on the way"):
            read_frames(plain, info, [0, 11], SIZE, CAPS, max_effort=most)
        assert len(decoded) <= packets


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        (MediaConfig(max_source_pixels=160 * 96 - 1), "160 x 96 = 15360 pixels a frame, at most 15359"),
        (MediaConfig(max_video_seconds=1.9), "lasts 2 s, at most 2 s"),
    ],
)
def test_headers_over_the_caps_are_refused_before_decoding(
    plain: bytes, decoded: list[int], caps: MediaConfig, message: str
) -> None:
    with pytest.raises(ChatError, match=message):
        probe(plain, caps)
    assert not decoded


def test_a_file_of_too_many_frames_is_refused_before_decoding(
    plain: bytes, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenization.media.video_probe.MAX_SOURCE_FRAMES", 59)
    with pytest.raises(ChatError, match="more than 59 frames"):
        probe(plain, CAPS)
    assert not decoded


def test_a_size_that_lies_in_the_header_is_refused_at_once(plain: bytes) -> None:
    """The container says 65535 x 65535; nothing of that size is ever made."""
    entry = plain.index(b"avc1", plain.index(b"stsd"))
    lied = plain[: entry + 28] + b"\xff\xff" * 2 + plain[entry + 32 :]
    begin = time.process_time()
    with pytest.raises(ChatError, match="65535 x 65535"):
        probe(lied, CAPS)
    assert time.process_time() - begin < 1


def test_a_stream_that_is_larger_than_its_header_says_is_not_decoded(plain: bytes) -> None:
    """The container says 16 x 16, the stream is 160 x 96: the decoder itself is held to the cap."""
    entry = plain.index(b"avc1", plain.index(b"stsd"))
    lied = plain[: entry + 28] + b"\0\x10" * 2 + plain[entry + 32 :]
    assert probe(lied, CAPS).width == 160
    with pytest.raises(ChatError):
        probe(lied, MediaConfig(max_source_pixels=160 * 96 - 1))


def test_a_packet_without_a_picture_shows_the_one_before_it(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second field, a repeat; but never across a gap, and not at the end of what is damaged."""
    index = PacketIndex(packets=np.arange(30), keys=(0, 10, 20), key_frames=(0, 10, 20), n_packets=30)
    runs = plan_runs(index, [1, 3, 15, 17, 26])
    assert len(runs) == 3
    pictures = {}
    for packet in (0, 2, 3, 17, 25):  # none of packet 1; none at all in run 2 before 17; none of packet 26
        pictures[packet] = av.VideoFrame(16, 16, "rgb24")
        pictures[packet].pts = packet
    monkeypatch.setattr(VideoReader, "decode", lambda self, index, runs: iter(pictures.values()))
    clip = open_video(plain, CAPS)
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

        def close(self) -> None:
            """Nothing is open."""

    packets = list(open_video(plain, CAPS).packets())
    clip = open_video(plain, CAPS)
    clip._source = Broken()  # type: ignore[assignment]
    assert list(clip.packets()) == packets[:2] == list(clip.packets())


def test_packets_are_read_from_the_file_once(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure a video and to decode it are one opening, and another one only after an error among threads."""
    opened: list[int] = []
    monkeypatch.setattr("tokenization.media.video_decoder.open_container", counted(opened))
    info = probe(plain, CAPS)
    read_frames(plain, info, range(60), SIZE, CAPS)
    assert len(opened) == 1
    broken = bytearray(plain)
    start = plain.index(b"mdat") + 900
    broken[start : start + 200] = bytes(200)
    info = probe(bytes(broken), CAPS)
    read_frames(bytes(broken), info, range(60), SIZE, CAPS)
    assert len(opened) <= 3


def counted(opened: list[int]) -> Callable[..., InputContainer]:
    def opens(*args: Any) -> InputContainer:
        opened.append(len(args[0]))
        return open_container(*args)

    return opens


def test_memory_that_runs_out_is_no_damage(plain: bytes) -> None:
    class Full:
        """In place of a decoder."""

        def decode(self, packet: object) -> list[object]:
            raise av.MemoryError(12, "Cannot allocate memory")

        def flush_buffers(self) -> None:
            """Nothing is inside."""

    clip = open_video(plain, CAPS)
    clip._context = Full()  # type: ignore[assignment]
    with pytest.raises(MemoryError):
        clip._feed(None)


def test_no_error_close_to_the_bound_is_the_video_s(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder whose threads find no room for their stacks refuses every packet, and a demuxer ends."""

    class Full:
        """In place of a decoder and a file."""

        def refuse(self, *_: object) -> list[object]:
            raise av.FFmpegError(11, "Resource temporarily unavailable")

        decode = demux = refuse

        def flush_buffers(self) -> None:
            """Nothing is inside."""

        def close(self) -> None:
            """Nothing is open."""

    clip = open_video(plain, CAPS)
    clip._context = clip._source = Full()  # type: ignore[assignment]
    assert clip._feed(None) == [] and clip.errors == 1
    monkeypatch.setattr(worker_memory, "private_bytes", lambda: 1 << 62)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 30, resource.RLIM_INFINITY))
    for meets_it in (lambda: clip._feed(None), lambda: list(clip.packets()), lambda: open_video(plain[:64], CAPS)):
        with pytest.raises(MemoryError):
            meets_it()
