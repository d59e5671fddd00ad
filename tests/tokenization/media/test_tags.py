"""Files with covers, chapters and hundreds of tags are read; those that take FFmpeg seconds are refused."""

import io
import struct
import time
from fractions import Fraction

import av
import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.sounds import SOUND_KINDS, encode_sound, make_tone, make_wav
from tests.samples.videos import make_clip
from tests.tables import each_of
from tests.tokenization.media.test_matroska_tracks import PACKED
from tokenization.cancel import Cancelled, Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound
from tokenization.media.containers import opening
from tokenization.media.containers.tags import check_comments
from tokenization.media.video_probe import probe

LIMITS = MediaConfig()
CPU_SECONDS = 0.5
COVER = b"\xff\xd8" + np.random.default_rng(1).bytes(1 << 20)


def read(data: bytes, check: Check = go_on) -> np.ndarray:
    return read_sound(data, LIMITS, check=check)


def of(kind: str) -> bytes:
    options = {"rate": 44100, **SOUND_KINDS[kind]}
    return encode_sound(make_tone(1.0, rate=options["rate"]), **options)


def id3(n: int, cover: bytes = b"") -> bytes:
    """A tag of ID3v2.3 with so many texts, and a picture."""
    texts = (b"\0%x\0a" % i for i in range(n))
    frames = b"".join(b"TXXX" + struct.pack(">IH", len(text), 0) + text for text in texts)
    picture = b"\0image/jpeg\0\3\0" + cover
    frames += (b"APIC" + struct.pack(">IH", len(picture), 0) + picture) * bool(cover)
    return b"ID3\3\0\0" + bytes(len(frames) >> shift & 0x7F for shift in (21, 14, 7, 0)) + frames


def comments(n: int) -> bytes:
    return struct.pack("<II", 0, n) + b"".join(struct.pack("<I", 8) + b"%06x=a" % i for i in range(n))


def flac(*blocks: tuple[int, bytes]) -> bytes:
    """Blocks, each as its type and content, behind the first one of a FLAC."""
    data = of("flac")
    more = b"".join(bytes([kind]) + struct.pack(">I", len(content))[1:] + content for kind, content in blocks)
    return data[:4] + b"\0" + data[5:42] + more + data[42:]


def chunk(name: bytes, content: bytes, order: str = "<") -> bytes:
    return name + struct.pack(order + "I", len(content)) + content + b"\0" * (len(content) % 2)


def wav(name: bytes, content: bytes) -> bytes:
    return make_wav(make_tone(1.0, rate=16000)) + chunk(name, content)


def info(n: int) -> bytes:
    return b"INFO" + b"".join(chunk(b"%04x" % i, b"a\0") for i in range(n))


@each_of("kind", SOUND_KINDS)
def test_hundreds_of_tags_and_chapters_pass(kind: str) -> None:
    data, sink = of(kind), io.BytesIO()
    container, options = SOUND_KINDS[kind].get("container", "wav"), {"movflags": "use_metadata_tags"}
    with av.open(io.BytesIO(data), "r") as source, av.open(sink, "w", format=container, options=options) as out:
        stream = out.add_stream_from_template(source.streams.audio[0])
        out.metadata.update({f"name {i}": "what it says" for i in range(400)}, title="A title", comment="long" * 9000)
        out.set_chapters(
            [{"id": i, "start": i, "end": i + 1, "time_base": Fraction(1, 100), "metadata": {}} for i in range(100)]
        )
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    assert abs(len(read(sink.getvalue())) - len(read(data))) <= 0.1 * 16000


@each_of(
    "data",
    [
        id3(400, COVER) + of("mp3"),
        id3(1) + id3(400, COVER) + of("adts aac"),
        id3(400, COVER) + flac((4, comments(400)), (6, COVER)),
        flac((4, comments(4000)), (6, COVER), (1, bytes(1 << 16))),
        wav(b"id3 ", id3(400, COVER)),
        wav(b"LIST", info(400)),
    ],
    ids=["mp3", "two tags", "flac behind a tag", "flac", "wav", "list"],
)
def test_covers_pass(data: bytes) -> None:
    assert 16000 <= len(read(data)) <= 1.2 * 16000


MANY = 40_000


@each_of(
    "data",
    [id3(MANY) + of("mp3"), wav(b"id3 ", id3(MANY)), of("aiff") + chunk(b"ID3 ", id3(MANY), ">")],
    ids=["mp3", "wav", "aiff"],
)
def test_id3_is_not_shown_to_ffmpeg(data: bytes) -> None:
    begun = time.process_time()
    assert 16000 <= len(read(data)) <= 1.1 * 16000
    assert time.process_time() - begun < CPU_SECONDS


@each_of(
    ("data", "message"),
    [
        (flac((4, comments(MANY))), "more comments"),
        (flac(*[(4, comments(5000))] * 4), "more comments"),
        (id3(1) + flac((4, comments(MANY))), "more comments"),
        (flac(*[(1, b"")] * 5000), "more blocks"),
        (b"OggS" + bytes(24) + b"OpusTags" + comments(MANY), "more comments"),
        (id3(0) + PACKED["zlib"], "compressed"),
    ],
    ids=["flac", "blocks", "behind a tag", "empty blocks", "ogg", "matroska behind a tag"],
)
def test_what_is_read_in_one_piece_is_refused_unread(data: bytes, message: str) -> None:
    begun = time.process_time()
    with pytest.raises(ChatError, match=message):
        read(data)
    assert time.process_time() - begun < CPU_SECONDS


@pytest.mark.parametrize("nbytes", [1 << 20, 1 << 23])
def test_chance_is_no_comment(nbytes: int) -> None:
    check_comments(b"OggS" + np.random.default_rng(2).bytes(nbytes), go_on)


CLAIMS = 0x50000000  # bytes: 1.3 GiB


@each_of("form", [b"RIFF", b"RF64", b"BW64", b"RIFX"])
def test_a_tag_of_a_wav_claims_nothing(form: bytes) -> None:
    """FFmpeg writes zeros to as much memory as it claims: 1.2 s and 1.3 GiB for 3 KB, which it reads all the same."""
    order = ">" if form == b"RIFX" else "<"
    samples = (make_tone(0.5, rate=16000) * 32767).astype(order + "i2").tobytes()
    data = chunk(b"ds64", struct.pack("<QQQI", 1 << 20, len(samples), 8000, 0)) if form in (b"RF64", b"BW64") else b""
    data += chunk(b"fmt ", struct.pack(order + "HHIIHH", 1, 1, 16000, 32000, 2, 16), order)
    data += chunk(b"data", samples, order)
    data += b"LIST" + struct.pack(order + "I", 0x7FFFFFFF) + b"INFOISFT" + struct.pack("<I", CLAIMS)
    begun = time.process_time()
    assert len(read(form + struct.pack(order + "I", len(data) + 4) + b"WAVE" + data)) == 8000
    assert time.process_time() - begun < CPU_SECONDS


@each_of("form", [b"RIFFAVI ", b"ON2 ON2f"])
def test_a_tag_of_an_avi_claims_nothing(form: bytes) -> None:
    data = make_clip(3, codec="mpeg4", container="avi", size=(64, 48))
    data = form[:4] + data[4:8] + form[4:] + data[12:] + b"LIST" + struct.pack("<I", 0x7FFFFFFF)
    begun = time.process_time()
    assert probe(data + b"INFOISFT" + struct.pack("<I", CLAIMS), LIMITS).n_frames == 3
    assert time.process_time() - begun < CPU_SECONDS


def caf(n: int, text: bytes = b"a") -> bytes:
    """A sound with so many texts, which FFmpeg reads one by one; so it does in other formats."""
    texts = struct.pack(">I", n) + b"".join(b"%04x\0%b\0" % (i, text) for i in range(n))
    data = of("caf")
    at = data.index(b"data")
    return data[:at] + b"info" + struct.pack(">Q", len(texts)) + texts + data[at:]


def test_a_header_that_takes_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "_MOST_SECONDS", 0.05)
    with pytest.raises(ChatError, match="header of the file takes too long"):
        read(caf(20_000))
    assert len(read(caf(400))) == 16000
    assert "dropped" not in capfd.readouterr().err  # the error is raised once, however often FFmpeg asks


def test_a_cancel_is_looked_at_while_a_file_is_opened(capfd: pytest.CaptureFixture[str]) -> None:
    looks: list[int] = []

    def leaves() -> None:
        looks.append(1)
        if len(looks) == 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        read(caf(1000, b"a" * 300), leaves)  # five reads of 64 KiB
    assert len(looks) == 4 and "dropped" not in capfd.readouterr().err
