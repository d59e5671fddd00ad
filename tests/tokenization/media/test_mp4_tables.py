"""Honest MP4s of every muxer pass, however long; tables that claim more than their bytes are refused unread."""

import contextlib
import io
import multiprocessing
import random
import re
import struct
import time
import zlib
from collections.abc import Callable

import av
import numpy as np
import pytest
from PIL import Image

from configs.serve import MediaConfig
from tests.samples.hostile_mp4 import box, compressed, edits, equal_samples, fragments, grouped, with_table
from tests.samples.videos import B_FRAMES, make_clip, make_sound
from tests.tables import each_of
from tokenization.cancel import Cancelled, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound
from tokenization.media.audio_decoder import open_sound
from tokenization.media.containers.mp4_tables import MOST_TRACKS, SLACK, check_tables, is_iso
from tokenization.media.video_decoder import open_video
from tokenization.media.video_probe import probe
from tokenization.worker_memory import bound_memory

pytestmark = pytest.mark.slow

CPU_SECONDS = 0.5
MUTATED_SECONDS = 10.0  # of the processor, for a file with other counts: the slowest takes 0.5 to 1.6, by the machine
TABLES = (b"stts", b"ctts", b"stsc", b"stsz", b"stz2", b"stco", b"co64", b"stss", b"elst", b"trun", b"sbgp", b"sgpd")


def checked(data: bytes) -> None:
    assert is_iso(memoryview(data))
    check_tables(memoryview(data), go_on)


def sound(codec: str, container: str, seconds: int, *, rate: int = 8000, **options: str) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        form = stream.format.name
        kind = {"u8": np.uint8, "s16": np.int16, "s16p": np.int16, "fltp": np.float32, "s32p": np.int32}[form]
        for second in range(seconds):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, rate), kind), format=form, layout="mono")
            frame.sample_rate, frame.pts = rate, second * rate
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return sink.getvalue()


def animated_avif() -> bytes:
    """Items as in still pictures beside a track."""
    out, frames = io.BytesIO(), [Image.new("RGB", (64, 64), (40 * i, 0, 0)) for i in range(4)]
    frames[0].save(out, "AVIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


HONEST: dict[str, Callable[[], bytes]] = {
    "mp4": lambda: make_clip(60),
    "b frames": lambda: make_clip(60, options=B_FRAMES),
    "mov": lambda: make_clip(60, container="mov"),
    "3gp": lambda: make_clip(10, container="3gp"),
    "ipod": lambda: make_clip(10, container="ipod"),
    "f4v": lambda: make_clip(10, container="f4v"),
    "ismv": lambda: make_clip(60, container="ismv"),
    "turned": lambda: make_clip(4, turn=(90, False)),
    "avif": lambda: animated_avif(),
    "one frame": lambda: make_clip(1),
    "many small frames": lambda: make_clip(8000, size=(16, 16), options={"preset": "ultrafast"}),
    "fragments of a frame": lambda: fragments(400),
    "h265 with open groups": lambda: make_clip(60, codec="libx265", options={"x265-params": "log-level=none"}),
    "prores": lambda: make_clip(3, container="mov", codec="prores_ks", pixels="yuv422p10le", size=(64, 64)),
    "aac": lambda: make_sound(),
    "m4a of ten minutes": lambda: sound("aac", "ipod", 600),
    "alac": lambda: sound("alac", "ipod", 60),
    "plain sound of ten minutes, one byte a sample": lambda: sound("pcm_u8", "mov", 600),
    "plain sound, two bytes": lambda: sound("pcm_s16le", "mov", 60, rate=48_000),
    "plain sound in mp4": lambda: sound("pcm_s16le", "mp4", 60, rate=48_000),
    "ima adpcm": lambda: sound("adpcm_ima_qt", "mov", 60),
    "fragmented sound": lambda: sound("aac", "mp4", 60, movflags="frag_keyframe+empty_moov"),
}


@each_of("what", HONEST)
def test_honest_files_pass(what: str) -> None:
    data = HONEST[what]()
    checked(data)


def old_quicktime_sound(samples: int, nbytes: int) -> bytes:
    """IMA ADPCM as QuickTime wrote it: its table counts samples, of which a byte holds nearly two."""
    data = sound("pcm_u8", "mov", 1)
    data = with_table(data, b"stsz", struct.pack(">III", 0, 1, samples))
    data = with_table(data, b"stts", struct.pack(">IIII", 0, 1, samples, 1))
    return with_table(data, b"stsc", struct.pack(">IIIII", 0, 1, 1, samples, 1)) + box(b"free", bytes(nbytes))


def test_samples_that_a_byte_holds_several_of_pass() -> None:
    checked(old_quicktime_sound(400_000, 200_000))
    with pytest.raises(ChatError, match="claims"):
        checked(old_quicktime_sound(400_000_000, 200_000))


def test_a_compressed_header_is_looked_into() -> None:
    """As old QuickTime files have it."""
    for data, refused in ((make_clip(2), False), (equal_samples(60_000_000), True)):
        at = data.index(b"moov") - 4
        (size,) = struct.unpack_from(">I", data, at)
        header = data[at + 8 : at + size]
        moved = data[:at] + box(b"moov", compressed(header))
        if refused:
            with pytest.raises(ChatError, match="claims"):
                checked(moved)
        else:
            checked(moved)
            assert len(list(open_video(moved, MediaConfig()).packets())) == 2


def test_compressed_headers_share_what_the_file_may_unpack(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, plain = [], zlib.decompressobj

    class Spy:
        """zlib's object, which tells how much it gives out."""

        def __init__(self) -> None:
            self._inside = plain()

        def decompress(self, packed: memoryview, most: int) -> bytes:
            unpacked.append(self._inside.decompress(packed, most))
            return unpacked[-1]

    monkeypatch.setattr("tokenization.media.containers.mp4_tables.zlib.decompressobj", Spy)
    data = make_clip(1) + box(b"moov", compressed(compressed(bytes(60_000)) * 50) * 4)
    with pytest.raises(ChatError, match="compressed headers"):
        checked(data)
    assert 0 < sum(map(len, unpacked)) <= len(data) + SLACK
    checked(make_clip(1) + box(b"moov", compressed(compressed(bytes(10_000)) * 2)))


def test_a_compressed_header_claims_no_more_than_is_looked_at() -> None:
    """FFmpeg unpacks as much as the header says: tables behind the first bytes of it took 2 GB."""
    tail = equal_samples(60_000_000)
    at = tail.index(b"moov") + 4
    with pytest.raises(ChatError, match="compressed headers"):
        checked(make_clip(1) + box(b"moov", compressed(box(b"free", bytes(1 << 20)) + tail[at:])))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "row 4": lambda: equal_samples(60_000_000),
    "large samples": lambda: equal_samples(60_000_000, 1000),
    "edits": lambda: edits(5000, 2000),
    "a fragment": lambda: fragments(10, count=60_000_000),
    "groups": lambda: grouped(100_000_000),
    "a plain sound": lambda: old_quicktime_sound(2_000_000_000, 0),
    "below a header in a free box": lambda: equal_samples(60_000_000).replace(b"moov", b"hoov"),
    "a table that is not there": lambda: with_table(make_clip(4), b"stco", struct.pack(">II", 0, 1 << 28)),
    "sizes that are not there": lambda: with_table(make_clip(4), b"stsz", struct.pack(">III", 0, 0, 1 << 28)),
    "in the description of a codec": lambda: make_clip(4).replace(b"avcC", b"stsz"),
    "runs of chunks that break off": lambda: with_table(make_clip(4), b"stsc", struct.pack(">III", 0, 1, 0)),
    "groups that break off": lambda: make_clip(4) + box(b"moov", box(b"sbgp", struct.pack(">I4sII", 0, b"sync", 1, 1))),
    "boxes": lambda: make_clip(4) + box(b"moov", box(b"udta", b"") * 100_000),
    "tracks and fragments": lambda: make_clip(4) + box(b"moof", b"") * 3000 + box(b"moov", box(b"trak", b"") * 900),
}


@each_of("short", [b"", b"\0", bytes(4) + b"sync", b"\1" + bytes(3) + b"sync" + bytes(4)])
def test_boxes_without_what_they_should_hold_are_read_or_refused(short: bytes) -> None:
    kinds = (*TABLES, b"senc", b"saiz", b"sidx", b"iinf", b"tkhd", b"tfhd", b"chap", b"hdlr", b"meta", b"iref", b"cmov")
    for kind in kinds:
        with contextlib.suppress(ChatError):
            checked(make_clip(1) + box(b"moov", box(b"trak", box(kind, short))))


@each_of("what", HOSTILE)
def test_what_claims_more_is_refused_unread(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = HOSTILE[what]()
    monkeypatch.setattr(av, "open", None)
    begun = time.process_time()
    for reads in (lambda: probe(data, MediaConfig()), lambda: open_sound(data).__enter__()):
        with pytest.raises(ChatError, match="claims|than its bytes|does not read"):
            reads()
    assert time.process_time() - begun < CPU_SECONDS


def test_more_tracks_than_ffmpeg_makes_streams_of_are_no_lack_of_memory() -> None:
    def tracks(n: int) -> bytes:
        return box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", box(b"trak", b"") * n)

    checked(tracks(MOST_TRACKS))
    with pytest.raises(ChatError, match="more than 1000 tracks"):
        probe(tracks(MOST_TRACKS + 1), MediaConfig())


def chapters(numbers: tuple[int, ...], samples: int, *, fragment: bool = False) -> bytes:
    """Three tracks; the first names these as its chapters, each of which has so many samples."""

    def track(number: int, *more: bytes) -> bytes:
        return box(b"trak", box(b"tkhd", struct.pack(">IIIII", 0, 0, 0, number, 0)) + b"".join(more))

    sizes = box(
        b"mdia", box(b"minf", box(b"stbl", box(b"stsz", struct.pack(">III", 0, 2, 0 if fragment else samples))))
    )
    names = box(b"tref", box(b"chap", struct.pack(f">{len(numbers)}I", *numbers)))
    run = box(b"tfhd", struct.pack(">II", 0, 2)) + box(b"trun", struct.pack(">II", 0, samples))
    header = box(b"moov", track(1, names) + track(2, sizes) + track(3, sizes))
    return make_clip(1) + header + box(b"moof", box(b"traf", run)) * fragment


def test_chapters_are_not_looked_up_without_end() -> None:
    """FFmpeg looks through all chapters for each of those of a second track: 100 KB took 30 s."""
    checked(chapters((2,), 30_000))
    checked(chapters((2, 3), 4000))
    checked(chapters((1, 2, 1, 2), 4000))
    for hostile in (
        chapters((2, 3), 4200),
        chapters((2, 2), 4200),
        chapters((2,) * 10_000, 1),
        chapters((2, 2), 4200, fragment=True),
    ):
        with pytest.raises(ChatError, match="more chapters"):
            checked(hostile)


def test_a_file_that_does_not_begin_as_an_mp4_is_never_read_as_one() -> None:
    """FFmpeg goes by content: an unknown box in front would have it read what was not looked at."""
    data = equal_samples(60_000_000)
    for first in (b"", box(b"abcd", bytes(100)) * 9, bytes(16), b"RIFF", box(b"abcd", b"")[:6]):
        begun = time.process_time()
        with pytest.raises(ChatError):
            probe(first + data, MediaConfig())
        assert time.process_time() - begun < CPU_SECONDS
    assert not is_iso(memoryview(make_clip(2, container="matroska"))) and not is_iso(memoryview(b""))


def test_boxes_are_walked_with_a_look_whether_anybody_waits() -> None:
    def leaves() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        check_tables(memoryview(make_clip(4) + box(b"free", bytes(1 << 20)) + box(b"udta", b"") * 3000), leaves)


def test_a_handler_is_looked_for_in_one_step() -> None:
    """A copy of the box for each name that lies between two numbers: 800 KB took seconds."""
    data = make_clip(1) + box(b"meta", b"xhdlrxxx" * 100_000)
    begun = time.process_time()
    checked(data)
    assert time.process_time() - begun < CPU_SECONDS


# ---- damage


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same file, of whose tables some have other counts, sizes or flags."""
    changed = bytearray(data)
    places = [match.end() for match in re.finditer(b"|".join(TABLES), data)]
    for at in rng.sample(places, min(len(places), rng.randint(1, 3))):
        for _ in range(rng.randint(1, 3)):
            field = at + rng.choice([0, 4, 4, 8, 8, 12, 16])
            value = rng.choice([rng.getrandbits(32), rng.getrandbits(rng.randint(1, 31)), 1, 0, 60_000_000, len(data)])
            struct.pack_into(">I", changed, min(field, len(changed) - 4), value)
    return bytes(changed)


def read(data: bytes) -> float:
    """Seconds of processor time to read the file as a video and as a sound."""
    begun = time.process_time()
    for reads in (lambda: probe(data, MediaConfig()), lambda: read_sound(data, MediaConfig())):
        try:
            reads()
        except ChatError:
            pass
    return time.process_time() - begun


def read_mutated(names: list[str], seed: int, n: int) -> list[tuple[str, int, float]]:
    """In a process of its own, whose memory is bounded: (what, which, seconds) of the slow ones, and the slowest."""
    rng = random.Random(seed)
    files = {name: HONEST[name]() for name in names}
    bound_memory(768 << 20)
    found = []
    for number in range(n):
        name = rng.choice(names)
        found.append((name, number, read(mutated(files[name], rng))))
    return sorted(found, key=lambda one: one[2])[-3:]


MUTATED = ["mp4", "b frames", "mov", "ismv", "fragments of a frame", "plain sound, two bytes", "ima adpcm", "aac"]


def mutations_cost_little(seed: int, n: int) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        slowest = pool.apply(read_mutated, (MUTATED, seed, n))
    assert slowest[-1][2] < MUTATED_SECONDS, slowest


def test_mutated_tables_cost_little_time_and_memory() -> None:
    mutations_cost_little(1, 40)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_mutated_tables_cost_little_time_and_memory() -> None:
    for seed in range(2, 12):
        mutations_cost_little(seed, 3000)
