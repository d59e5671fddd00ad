"""Tracks whose frames are packed are refused before FFmpeg unpacks them; what muxers write passes."""

import contextlib
import io
import struct
import time
import zlib

import av
import pytest

from configs.serve import MediaConfig
from tests.tables import each_of
from tokenization.cancel import go_on
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound
from tokenization.media.containers.matroska_tracks import MOST_STRIPPED, check_tracks
from tokenization.media.containers.mp4_tables import MOST_TRACKS

UNKNOWN = b"\x01" + b"\xff" * 7
CPU_SECONDS = 0.5


def element(kind: str, content: bytes, size: bytes = b"") -> bytes:
    return bytes.fromhex(kind) + (size or struct.pack(">Q", len(content) | 1 << 56)) + content


def number(kind: str, value: int) -> bytes:
    return element(kind, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))


def encodings(algorithm: int | None, settings: bytes = b"", size: bytes = b"") -> bytes:
    compression = b"" if algorithm is None else number("4254", algorithm)
    compression += element("4255", settings) if settings else b""
    return element("6d80", element("6240", number("5031", 0) + element("5034", compression, size), size), size)


def matroska(*tracks: bytes, blocks: bytes = b"", size: bytes = b"") -> bytes:
    """A file of sounds in MP3, with what each track says besides."""
    entries = b"".join(
        element("ae", number("d7", i) + number("73c5", i) + number("83", 2) + element("86", b"A_MPEG/L3") + more, size)
        for i, more in enumerate(tracks, 1)
    )
    head = element("1a45dfa3", element("4282", b"matroska") + number("4287", 4) + number("4285", 2))
    cluster = element("1f43b675", number("e7", 0) + blocks)
    return head + element("18538067", element("1654ae6b", entries, size) + cluster, UNKNOWN)


def laced(content: bytes, n: int = 256) -> bytes:
    """A block of so many frames of one size."""
    return element("a3", b"\x81" + struct.pack(">hB", 0, 0x84) + bytes([n - 1]) + content * n)


ZIPPED = zlib.compress(bytes(9_000_000), 9)
PACKED = {
    "a prefix of 256 KiB": matroska(encodings(3, bytes(1 << 18)), blocks=laced(b"\1") * 20),
    "zlib": matroska(encodings(0), blocks=laced(ZIPPED, 1) * 60),
    "zlib by default": matroska(encodings(None), blocks=laced(ZIPPED, 1) * 60),
    "no compression named": matroska(element("6d80", element("6240", number("5033", 0))), blocks=laced(ZIPPED, 1) * 60),
    "another track": matroska(b"", encodings(0), blocks=laced(ZIPPED, 1) * 60),
    "sizes unknown": matroska(encodings(0, size=UNKNOWN), blocks=laced(ZIPPED, 1) * 60, size=UNKNOWN),
    "behind a void": matroska(element("ec", bytes(99)) + encodings(0), blocks=laced(ZIPPED, 1) * 60),
    "a second algorithm": matroska(encodings(3, b"\0") + encodings(0), blocks=laced(ZIPPED, 1) * 60),
    "a second list": matroska(b"") + matroska(encodings(0), blocks=laced(ZIPPED, 1) * 60),
}


@each_of("name", PACKED)
def test_packed_frames_are_refused_unread(name: str) -> None:
    begun = time.process_time()
    with pytest.raises(ChatError, match="remux"):
        read_sound(PACKED[name], MediaConfig(), model_seconds=30, check=go_on)
    assert time.process_time() - begun < CPU_SECONDS


@pytest.mark.parametrize("stripped", [b"\x0b\x77", bytes(MOST_STRIPPED)], ids=len)
def test_a_sync_word_before_each_frame_passes(stripped: bytes) -> None:
    check_tracks(memoryview(matroska(encodings(3, stripped), blocks=laced(b"\1"))), go_on)


@pytest.mark.parametrize("container", ["matroska", "webm"])
def test_what_a_muxer_writes_passes(container: str) -> None:
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as out:
        stream = out.add_stream("libopus" if container == "webm" else "ac3", rate=48000)
        frame = av.AudioFrame(format=stream.format.name, layout=stream.layout.name, samples=stream.frame_size or 1024)
        frame.sample_rate = 48000
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for _ in range(50):
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    check_tracks(memoryview(sink.getvalue()), go_on)


def test_no_list_of_tracks_takes_long() -> None:
    """A name of a list at every fourth byte, each as long as the file."""
    begun = time.process_time()
    with pytest.raises(ChatError, match="more elements"):
        check_tracks(memoryview((bytes.fromhex("1654ae6b") + b"\x81\x80") * (1 << 20)), go_on)
    assert time.process_time() - begun < 2 * CPU_SECONDS


@each_of("cut", range(0, 120, 7))
def test_a_cut_list_ends(cut: int) -> None:
    data = matroska(encodings(3, b"\0"))
    with contextlib.suppress(ChatError):  # where the algorithm is what is missing
        check_tracks(memoryview(data[: len(data) - cut]), go_on)


MANY = 20_000
LISTS = {
    "tags": element("1254c367", element("7373", element("67c8", element("45a3", b"a") + element("4487", b"b")) * MANY)),
    "chapters": element("1043a770", element("45b9", element("b6", number("73c4", 1)) * MANY)),
    "many lists": element("1254c367", element("7373", element("67c8", element("45a3", b"a")))) * MANY,
}


@each_of("name", LISTS)
def test_more_tags_and_chapters_than_any_file_needs_are_refused(name: str) -> None:
    with pytest.raises(ChatError, match="tags or chapters"):
        check_tracks(memoryview(matroska(b"") + LISTS[name]), go_on)


def test_the_header_of_a_flac_in_a_track_is_looked_into() -> None:
    comments = b"fLaC\4\0\0\0" + b"".join(b"\5\0\0\0%03d=" % (i % 1000) for i in range(MANY))
    check_tracks(memoryview(matroska(element("63a2", comments[:8000]))), go_on)
    with pytest.raises(ChatError, match="more comments"):
        check_tracks(memoryview(matroska(element("63a2", comments))), go_on)


def test_no_byte_is_looked_through_for_comments_twice() -> None:
    """Lists in the header of a codec, each with one that is as long as the rest of the file."""
    texts, head = b"\0\0=" * 7000, bytes.fromhex("1654ae6b") + UNKNOWN
    check_tracks(memoryview(matroska(*[element("63a2", texts[:3000])] * 7)), go_on)
    rest = texts
    for _ in range(200):
        rest = head + element("63a2", rest)
    begun = time.process_time()
    with pytest.raises(ChatError, match="more elements"):
        check_tracks(memoryview(element("1a45dfa3", b"") + rest), go_on)
    assert time.process_time() - begun < CPU_SECONDS / 5


def test_no_list_is_deep() -> None:
    deep = b""
    for _ in range(2000):
        deep = element("67c8", deep)
    with pytest.raises(ChatError, match="tags or chapters"):
        check_tracks(memoryview(matroska(b"") + element("1254c367", element("7373", deep))), go_on)


def test_more_tracks_than_ffmpeg_makes_streams_of_are_no_lack_of_memory() -> None:
    check_tracks(memoryview(matroska(*[b""] * MOST_TRACKS)), go_on)
    with pytest.raises(ChatError, match="more than 1000 tracks"):
        read_sound(matroska(*[b""] * (MOST_TRACKS + 1)), MediaConfig())
