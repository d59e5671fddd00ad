"""Sounds that a running server refuses: the field that is named, and what they cost those who share it."""

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.e2e.audio_chats import (
    GREEDY,
    IMAGE,
    QUESTION,
    SECONDS,
    SILENT,
    SOUND,
    TALKIE,
    WAV,
    answer_of,
    native,
    refused,
    sound_url,
)
from tests.e2e.running import RunningServer
from tests.samples.sounds import encode_sound, make_tone, make_wav
from tests.samples.soundtracks import tone

pytestmark = pytest.mark.process

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"audio": sound_url(b"no sound at all, but some bytes" * 40)}, "audio", "not a sound"),
    ({"audio": sound_url(b"")}, "audio", ""),
    ({"audio": sound_url(make_wav(tone(0)))}, "audio", "no sound that can be decoded"),
    ({"audio": sound_url(make_wav(tone(500)))}, "audio", "too short"),
    ({"audio": sound_url(make_wav(tone(16000 * SECONDS + 1)))}, "audio", f"the allowed {SECONDS} s"),
    ({"audio": sound_url(make_wav(tone(16000))[:30])}, "audio", ""),
    ({"audio": "data:audio/wav;base64,%%%"}, "audio", ""),
    ({"audio": "/etc/passwd"}, "audio", ""),
    ({"audio": 3}, "audio", "expected a string"),
    ({"audio": sound_url(WAV), "fps": 2}, "fps", "not known"),
    ({"audio": sound_url(WAV), "use_audio_in_video": True}, "use_audio_in_video", "not known"),
    ({"image": IMAGE["image"], "use_audio_in_video": True}, "use_audio_in_video", "not known"),
    ({"video": SILENT["video"], "use_audio_in_video": True}, "video", "use_audio_in_video"),
    ({"video": [IMAGE["image"]] * 2, "use_audio_in_video": True}, "video", "a list of pictures has no sound"),
    *(
        ({"video": TALKIE["video"], "use_audio_in_video": wrong}, "use_audio_in_video", "expected true or false")
        for wrong in ("true", 1, [True])
    ),
]


def test_a_bad_sound_names_its_field(omni: RunningServer) -> None:
    wrong = {}
    for number, (part, field, words) in enumerate(BAD):
        try:
            refused(omni.http.post("/chat", json=[IMAGE, SOUND, part]), f"inputs[2].{field}", words)
            if field in ("audio", "video"):
                refused(omni.http.post("/tokenize", json={"inputs": [part]}), f"inputs[0].{field}", words)
        except AssertionError as error:
            wrong[number, field, words] = str(error)
    assert not wrong


BAD_OPENAI: list[tuple[dict[str, Any], str]] = [
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "midi"}}, ".input_audio.format"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, ".input_audio.format"),
    ({"type": "input_audio", "input_audio": {"format": "wav"}}, ".input_audio.data"),
    ({"type": "input_audio", "input_audio": "AAAA"}, ".input_audio"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, ""),
    ({"type": "audio_url", "audio_url": {"url": sound_url(b"AAAA")}}, ""),
    ({"type": "audio_url", "audio_url": {"url": sound_url(WAV), "fps": 2}}, ".audio_url.fps"),
    (
        {"type": "video_url", "video_url": {"url": TALKIE["video"], "use_audio_in_video": 1}},
        ".video_url.use_audio_in_video",
    ),
]


def test_a_bad_sound_in_openais_form_names_its_field(omni: RunningServer) -> None:
    wrong = {}
    for part, param in BAD_OPENAI:
        body = {"messages": [{"role": "user", "content": [part]}]}
        try:
            refused(omni.http.post("/v1/chat/completions", json=body), f"messages[0].content[0]{param}")
        except AssertionError as error:
            wrong[str(part)[:80]] = str(error)
    assert not wrong


def test_a_bad_sound_beside_good_neighbours(omni: RunningServer) -> None:
    alone = native(omni, SOUND, IMAGE)["text"]
    bad = {"inputs": [SOUND, {"audio": sound_url(b"RIFF" + bytes(300))}, IMAGE], "parameters": GREEDY}
    good = {"inputs": [SOUND, IMAGE, QUESTION], "parameters": GREEDY}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda body: omni.http.post("/chat", json=body), [bad, good] * 3))
    for answer in answers[::2]:
        refused(answer, "inputs[1].audio")
    assert [answer_of(answer)["text"] for answer in answers[1::2]] == [alone] * 3


def opus_silence(seconds: int) -> bytes:
    """An Ogg Opus file whose silence takes next to no bytes: one packet of 60 ms, again and again."""
    options = {"b": "6000", "vbr": "on", "frame_duration": "60"}
    rows = make_tone(1, rate=8000, loudness=0.0)
    short, sink = (
        io.BytesIO(encode_sound(rows, rate=8000, codec="libopus", container="ogg", options=options)),
        io.BytesIO(),
    )
    with av.open(short, "r") as source, av.open(sink, "w", format="ogg") as output:
        stream = output.add_stream_from_template(source.streams.audio[0])
        silent = bytes(list(source.demux(audio=0))[5])
        for i in range(round(seconds / 0.06)):
            packet = av.Packet(silent)
            packet.stream, packet.time_base, packet.pts = stream, Fraction(1, 48000), 2880 * i
            packet.dts, packet.duration = packet.pts, 2880
            output.mux(packet)
    return sink.getvalue()


def peak_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_hours_of_silence_in_few_bytes_cost_nothing(omni: RunningServer) -> None:
    """Half an hour at 16 kHz would be 115 MB of samples; none of it is decoded beyond what is allowed."""
    bomb = opus_silence(1800)
    assert len(bomb) < 2 << 20
    native(omni, SOUND, TALKIE)
    (worker,) = omni.children("worker")
    before, spent = peak_mib(worker), processor_seconds(worker)
    for _ in range(3):
        answer = omni.http.post("/chat", json=[{"audio": sound_url(bomb, "ogg")}])
        refused(answer, "inputs[0].audio", f"the allowed {SECONDS} s")
    assert processor_seconds(worker) - spent < 15
    assert omni.children("worker") == [worker]
    assert peak_mib(worker) < before + 48, "the body, its copies on the way, and one second of sound"
    many = {"inputs": [{"audio": sound_url(opus_silence(SECONDS - 1), "ogg")}] * 32, "parameters": GREEDY}
    assert answer_of(omni.http.post("/tokenize", json={"inputs": many["inputs"]}))["count"] > 32 * 470


# ---- models that lack a sense


def test_models_that_do_not_hear_say_what_they_take(server: RunningServer) -> None:
    words, code = "does not take audio (it takes text, image, video)", "unsupported_modality"
    refused(server.http.post("/chat", json=[SOUND]), "inputs[0].audio", words, code)
    for part in (
        {"type": "audio_url", "audio_url": {"url": SOUND["audio"]}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ):
        body = {"messages": [{"role": "user", "content": [part]}], "stream": True}
        answer = server.http.post(
            "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        refused(answer, "messages[0].content[0]", words, code)
    refused(server.http.post("/chat", json=[TALKIE]), "inputs[0].video", "use_audio_in_video")
    silent = {"type": "video_url", "video_url": {"url": TALKIE["video"]}}
    of_all = {"messages": [{"role": "user", "content": [silent]}], "mm_processor_kwargs": {"use_audio_in_video": True}}
    answer = server.http.post("/v1/chat/completions", json=of_all)
    refused(answer, "mm_processor_kwargs.use_audio_in_video", "does not hear videos")
