"""Damage costs no more of a sound than it must; hostile bytes reach nothing and take no more than their share."""

import io
import socket
import time
import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.sounds import SOUND_KINDS, encode_sound, find_hertz, make_tone, make_wav
from tests.samples.videos import make_clip, make_jpeg, make_png
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media import audio_decoder
from tokenization.media.audio import read_sound
from tokenization.media.audio_decoder import open_sound

pytestmark = pytest.mark.slow

LIMITS = MediaConfig()
NO_SOUND = "this is not a sound that the server reads, or its header is damaged"
NOTHING = "the file holds no sound that can be decoded"
TONE = make_tone(1.0, rate=16000)
WAV = make_wav((TONE * 32767).astype(np.int16))


def refuse(data: bytes, message: str) -> None:
    with pytest.raises(ChatError) as caught:
        read_sound(data, LIMITS)
    assert caught.value.message == message
    assert caught.value.param is None


# ---- what is no sound


@each_of(
    "data",
    [
        b"",
        b"\0",
        b"hello, this is a text file\n" * 100,
        b"RIFF",
        WAV[:20],
        bytes(100_000),
        b"<html><body>404</body></html>",
        b'{"audio": "x.wav"}',
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_sound(data: bytes) -> None:
    refuse(data, NO_SOUND)


@pytest.mark.parametrize("data", [make_png(), make_jpeg(5)], ids=["png", "jpeg"])
def test_a_picture_is_no_sound(data: bytes) -> None:
    refuse(data, f"{NO_SOUND}; it looks like an image, which is sent as 'image_url', on /chat as 'image'")


def test_noise_is_no_sound() -> None:
    with pytest.raises(ChatError):
        read_sound(np.random.default_rng(0).bytes(100_000), LIMITS)


@each_of(("codec", "container"), [("libx264", "mp4"), ("libvpx", "webm"), ("mjpeg", "avi")])
def test_a_video_without_a_sound(codec: str, container: str) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    refuse(make_clip(8, codec=codec, container=container, pixels=pixels), "the file holds no sound track")


def test_a_sound_of_no_samples() -> None:
    refuse(make_wav(np.zeros(0, np.int16)), NOTHING)


def test_a_codec_that_is_not_on_the_list() -> None:
    refuse(make_wav(np.zeros(100, np.int64)), "the codec of the sound is not supported")


@each_of("bad", [np.nan, np.inf, -np.inf])
@each_of("rate", [16000, 44100])
def test_values_that_are_no_numbers(bad: float, rate: int) -> None:
    samples = make_tone(0.2, rate=rate)
    samples[len(samples) // 2] = bad
    refuse(make_wav(samples, rate=rate), "the sound holds values that are not finite numbers")


def test_numbers_beyond_float32() -> None:
    refuse(make_wav(np.full(500, 1e300)), "the sound holds values that are not finite numbers")


# ---- damage


@each_of("claimed", [0, 10, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFF0, 1 << 30])
def test_a_header_that_lies_about_its_size(claimed: int) -> None:
    """Recorders that write to a pipe claim nothing or gigabytes; what is there counts."""
    data = make_wav((TONE * 32767).astype(np.int16), data_bytes=claimed, riff_bytes=min(claimed + 36, 0xFFFFFFFF))
    samples = read_sound(data, LIMITS)
    assert len(samples) == (5 if claimed == 10 else 16000)


@each_of("kind", [kind for kind in SOUND_KINDS if kind.split()[0] not in ("m4a", "mp4", "mov")])
def test_a_broken_off_tail_gives_the_sound_before_it(kind: str) -> None:
    options = {"rate": 44100, **SOUND_KINDS[kind]}
    rng = np.random.default_rng(0)
    tone = make_tone(2.0, rate=options["rate"]) + rng.normal(size=2 * options["rate"]).astype(np.float32) * 0.01
    data = encode_sound(tone, **options)
    samples = read_sound(data[: len(data) * 6 // 10], LIMITS)
    assert 10_000 < len(samples) < 24_000
    assert find_hertz(samples) == pytest.approx(440, abs=1)


def test_an_mp4_without_its_index() -> None:
    data = encode_sound(make_tone(1.0, rate=44100), codec="aac", container="mp4")
    refuse(data[: len(data) * 6 // 10], NO_SOUND)


def test_a_hole_in_the_middle_costs_what_lay_there() -> None:
    data = bytearray(encode_sound(make_tone(3.0, rate=44100), codec="libmp3lame", container="mp3"))
    data[len(data) // 2 : len(data) // 2 + 4000] = bytes(4000)
    samples = read_sound(bytes(data), LIMITS)
    assert 36_000 < len(samples) <= 48_100
    assert find_hertz(samples[:20_000]) == pytest.approx(440, abs=1)


@each_of(("codec", "container"), [("aac", "mp4"), ("aac", "matroska"), ("flac", "flac")])
@each_of(("lost", "heard"), [(0.3, True), (0.9, False)])
def test_a_sound_that_lost_most_of_itself_is_refused(codec: str, container: str, lost: float, heard: bool) -> None:
    """By the length that its header tells, or by the packets that do not decode; what lost less is heard without it."""
    data = encode_sound(make_tone(4.0, rate=44100), codec=codec, container=container)
    with av.open(io.BytesIO(data), "r") as source:
        packets = [bytes(packet) for packet in source.demux() if packet.size]
    for packet in packets[-int(len(packets) * lost) :]:
        data = data.replace(packet, b"\xff" * len(packet))
    if heard:
        assert 40_000 < len(read_sound(data, LIMITS)) < 50_000
    else:
        refuse(data, "the sound is damaged: less than half of it can be decoded")


def test_a_sound_that_breaks_off_early_is_refused() -> None:
    data = encode_sound(make_tone(2.0, rate=44100), codec="flac", container="flac")
    refuse(data[: len(data) * 4 // 10], "the sound is damaged: less than half of it can be decoded")


def test_memory_that_runs_out_is_no_damage() -> None:
    class Full:
        """In place of a decoder."""

        def decode(self, packet: object) -> list[object]:
            raise av.MemoryError(12, "Cannot allocate memory")

    with open_sound(WAV) as sound, pytest.raises(MemoryError):
        sound._context = Full()  # type: ignore[assignment]
        list(sound.frames(100))


def test_what_goes_wrong_outside_ffmpeg_is_not_the_sound_s() -> None:
    with pytest.raises(av.FFmpegError, match="ours"), open_sound(WAV):
        raise av.FFmpegError(22, "ours")


@each_of("kind", SOUND_KINDS)
def test_flipped_bytes(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever is flipped, a sound or an error comes out, and FFmpeg writes nothing."""
    options = {"rate": 44100, **SOUND_KINDS[kind]}
    data = encode_sound(make_tone(0.3, rate=options["rate"]), **options)
    rng = np.random.default_rng(len(data))
    limits = MediaConfig(max_audio_seconds=5)
    for number in range(30):
        broken = bytearray(data)
        reach = 200 if number % 2 else len(data)  # every other time the header
        for at in rng.integers(0, min(reach, len(data)), 1 + number % 7):
            broken[at] = rng.integers(0, 256)
        try:
            samples = read_sound(bytes(broken), limits)
        except ChatError as error:
            assert error.param is None
        else:
            assert 1 <= len(samples) <= 5 * 16000 + 16000
            assert np.isfinite(samples).all()
    assert capfd.readouterr() == ("", "")


# ---- what takes too much


@pytest.mark.parametrize("rate", [768_001, 2**31 - 1])
def test_a_rate_that_no_sound_has(rate: int) -> None:
    refuse(
        make_wav(np.zeros(100, np.int16), rate=rate), f"the sound has {rate} samples a second, it must have 1 to 768000"
    )


@pytest.mark.parametrize("channels", [65, 500])
def test_more_channels_than_any_sound_has(channels: int) -> None:
    data = make_wav(np.zeros((10, channels), np.int16))
    refuse(data, f"the sound has {channels} channels, it must have 1 to 64")


@each_of("kind", ["flac", "ogg opus", "webm opus"])
def test_a_bomb_stops_at_the_cap(kind: str) -> None:
    """Minutes of silence in some kilobytes: neither decoded beyond the cap, nor held."""
    options = {**SOUND_KINDS[kind], "rate": 48000}
    data = encode_sound(np.zeros(48000 * 150, np.float32), **options)
    assert len(data) < 300_000
    start = time.process_time()
    tracemalloc.start()
    with pytest.raises(ChatError, match="lasts more than the allowed 20 s"):
        read_sound(data, MediaConfig(max_audio_seconds=20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 16000 * 4 + (4 << 20)
    assert time.process_time() - start < 5


def test_a_claim_above_the_cap_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_sound(np.zeros(48000 * 10, np.float32), rate=48000, codec="flac", container="flac")
    monkeypatch.setattr(audio_decoder.SoundReader, "frames", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ChatError, match="lasts more than the allowed 5 s"):
        read_sound(data, MediaConfig(max_audio_seconds=5))


def test_more_samples_than_an_honest_sound_has() -> None:
    rng = np.zeros((8, 192_000 * 5), np.float32)
    data = encode_sound(rng, rate=192_000, codec="flac", container="flac")
    with pytest.raises(ChatError, match="more samples than the server decodes"):
        read_sound(data, MediaConfig(max_audio_seconds=5))


def test_more_packets_than_an_honest_sound_has() -> None:
    data = encode_sound(np.zeros(16000, np.float32), rate=16000, codec="pcm_s16le", container="wav")
    with open_sound(data) as sound, pytest.raises(ChatError, match="too many packets"):
        list(sound._decode(2))


def test_a_rate_that_changes_all_the_time() -> None:
    parts = [
        encode_sound(np.zeros(2048, np.float32), rate=rate, codec="aac", container="adts") for rate in (16000, 48000)
    ]
    refuse(b"".join(parts) * 40, "the sound changes its rate or its channels too often")


# ---- what names other files


@each_of(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{}'\n",
        "[playlist]\nFile1={}\nNumberOfEntries=1\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{}</BaseURL></MPD>',
        "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\na=control:{}\n",
        "{}",
    ],
    ids=["hls", "ffconcat", "pls", "dash", "sdp", "address"],
)
def test_a_list_of_other_files_is_never_followed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "secret.wav"
    path.write_bytes(WAV)
    with socket.create_server(("127.0.0.1", 0)) as server:
        for target in (str(path), f"file://{path}", f"http://127.0.0.1:{server.getsockname()[1]}/a.wav"):
            refuse(text.format(target).encode(), NO_SOUND)
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


def test_ffmpeg_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for data in (WAV[:30], WAV[:3001], b"ID3" + bytes(1000), bytes(1000), make_clip(4)):
        try:
            read_sound(data, LIMITS)
        except ChatError:
            continue
    assert capfd.readouterr() == ("", "")
