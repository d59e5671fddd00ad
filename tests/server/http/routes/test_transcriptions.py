"""POST /v1/audio/transcriptions: forms as httpx writes them and forms that are none, and the words as an answer."""

import base64
import json
import random
import time
from typing import Any

import httpx
import pytest

from model.family import Transcription
from model.registry import families
from server.http.large_bodies import at_once
from server.http.routes import transcriptions
from server.http.routes.transcriptions import (
    LONGEST_NUMBER,
    MOST_FIELDS,
    MOST_TEXT,
    TranscriptionRequest,
    TranscriptSerializer,
    form_boundary,
    form_fields,
    read_transcription,
)
from server.request_context import RequestContext
from server.requests.refusal import Refusal
from tests.server.http.answers import ACCEPTED, DELTAS, answered, collected, parse_all
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Media, Text

OWN = Transcription(system="You hear.", prompt="Write it down.")
SOUND = b"RIFF\r\n--\r\n\x00\xff--x--" * 7


def form(files: dict[str, Any] | None = None, **fields: Any) -> tuple[bytes, bytes]:
    """A body as a well-kept client writes it, and its boundary."""
    request = httpx.Request(
        "POST", "http://a", data=fields, files={"file": ("a.wav", SOUND)} if files is None else files
    )
    request.read()
    return request.content, form_boundary(request.headers, ())


def read(files: dict[str, Any] | None = None, **fields: Any) -> TranscriptionRequest:
    raw, boundary = form(files, **fields)
    return at_once(read_transcription(raw, "r1", boundary=boundary, own=OWN))


def turns(asked: TranscriptionRequest) -> list[tuple[str, list[str]]]:
    chat = asked.request.chat
    assert isinstance(chat, Chat)
    shown: list[tuple[str, list[str]]] = []
    for turn in chat.turns:
        parts = list[str]()
        for part in turn.parts:
            assert isinstance(part, Text | Media)
            source = part.text if isinstance(part, Text) else part.source
            assert isinstance(source, str), "nothing of a form is fetched"
            parts.append(source)
        shown.append((turn.role, parts))
    return shown


LARGE = 16 << 20
URL = f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"


def test_a_form_is_a_chat_with_the_familys_words() -> None:
    asked = read(model="m")
    assert turns(asked) == [("system", ["You hear."]), ("user", [URL, "Write it down."])]
    assert asked.model == "m" and asked.request.sampling.temperature == 0 and not asked.plain
    assert [medium.param for medium in asked.request.chat.media] == ["file"]


def test_fields_arrive() -> None:
    asked = read(prompt="Words?", language="en", temperature="0.5", response_format="text", stream="true")
    assert turns(asked) == [("user", [URL, "Words? The language is en."])]
    assert asked.request.sampling.temperature == 0.5 and asked.plain and asked.request.stream
    assert (read(cache_salt="s").request.cache_salt, asked.request.cache_salt) == ("s", "")
    assert turns(read(prompt="", language="")) == turns(read()), "an empty field says nothing"


def test_a_misspelt_field_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It changes nothing: nobody else says so."""
    with caplog.at_level("INFO", "pixelferry.http"):
        assert read(temprature="1", chunking_strategy="auto").request.sampling.temperature == 0
    (said,) = caplog.messages
    assert "'temprature'" in said and "temperature" in said.partition("'temprature'")[2]
    assert read(temperature=".5").request.sampling.temperature == read(temperature="5e-1").request.sampling.temperature


def test_whoever_hears_says_how_it_is_asked() -> None:
    assert all(("audio" in family.modalities) == (family.transcription is not None) for family, _ in families())


@each_of(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"), ({"temperature": "nan"}, "temperature"),
        *(({"temperature": text}, "temperature") for text in ("1_0", " 1", "1e", "infinity", "\u0661")),
        ({"seed": "1"}, "seed"), ({"top_p": "0.5"}, "top_p"), ({"stop[]": "x"}, "stop"),
        ({"temperature": "-1"}, "temperature"), ({"response_format": "xml"}, "response_format"),
        *(({"response_format": kind}, "response_format") for kind in ("verbose_json", "srt", "vtt", "diarized_json")),
        ({"timestamp_granularities[]": ["word", "segment"]}, "timestamp_granularities"),
        ({"include[]": "logprobs"}, "include"), ({"known_speaker_names[]": "a"}, "known_speaker_names"),
        ({"stream": "yes"}, "stream"), ({"language": "<|en|>"}, "language"), ({"language": "e" * 99}, "language"),
        ({"prompt": b"\xff"}, "prompt"), ({"prompt": "x" * (MOST_TEXT + 1)}, "prompt"),
        ({"model": ["a", "b"]}, "model"),
        ({"file": "x"}, "file"),
    ],
)  # fmt: skip
def test_a_complaint_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((Refusal, ChatError)) as caught:
        read(**fields)
    assert isinstance(caught.value, Refusal | ChatError) and caught.value.param == param
    if "response_format" in fields and fields["response_format"] != "xml":
        assert "without times" in str(caught.value)


def test_a_long_text_is_no_number() -> None:
    """A field holds 256 KiB: a pattern that tries each way to cut them holds the interpreter for minutes."""
    assert read(temperature="0" * LONGEST_NUMBER).request.sampling.temperature == 0
    began = time.process_time()
    for text in ("0" * (LONGEST_NUMBER + 1), "1" * 20_000 + "x", "1." + "1" * 20_000 + "x"):
        with pytest.raises(Refusal, match="temperature: must be a number"):
            read(temperature=text)
    assert time.process_time() - began < 0.2


@each_of("files", [{"other": b"x"}, {"file": b""}])
def test_a_sound_is_needed(files: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="a sound is needed"):
        read(files)


def test_a_broken_form_is_refused() -> None:
    """Cut anywhere, and with bytes changed: a Refusal, or a form; never another error, and never a form that is cut."""
    raw, boundary = form(prompt="Words?")
    for end in range(len(raw) - 4):  # without its last line break it is whole
        with pytest.raises(Refusal):
            at_once(read_transcription(raw[:end], "r1", boundary=boundary, own=OWN))
    rng, refused = random.Random(0), 0
    for _ in range(3000):
        spoilt = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(b'\r\n-:;="\x00a\xff')
        try:
            at_once(read_transcription(spoilt, "r1", boundary=boundary, own=OWN))
        except (Refusal, ChatError):
            refused += 1
    assert 300 < refused < 3000


@each_of("inside", [b"\r\n--bX" * 30_000, b"\r\n--b" + b" " * 200_000], ids=["near", "padded"])
def test_what_is_nearly_a_boundary_is_refused_unparsed(inside: bytes) -> None:
    """Each would be weighed in Python, byte by byte, in a thread that others wait for."""
    raw = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + inside + b"\r\n--b--\r\n"
    began = time.process_time()
    with pytest.raises(Refusal) as caught:
        at_once(read_transcription(raw, "r1", boundary=b"b", own=OWN))
    assert caught.value.code == "invalid_form" and time.process_time() - began < 0.02


@each_of("sound", [b"\n", b"\r\n--"], ids=["line feeds", "nearly boundaries"])
def test_a_large_form_is_read_in_slices(sound: bytes) -> None:
    """Whatever it holds, no step of it keeps others waiting for longer than 50 ms of processor time."""
    content = sound * (LARGE // len(sound))
    raw = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + content + b"\r\n--x--\r\n"
    steps, longest = read_transcription(raw, "r1", boundary=b"x", own=OWN), 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            asked = end.value
            break
        finally:
            longest = max(longest, time.thread_time() - began)
    assert longest < 0.05
    ((_, (url, _)),) = turns(asked)[1:]
    assert url == "data:audio/wav;base64," + base64.b64encode(content).decode()


@each_of("at", range(-40, 8))
def test_a_boundary_at_the_end_of_a_slice_is_found(at: int) -> None:
    head = b'--boundary\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    content = bytes(transcriptions.SLICE + at - len(head))
    for end, taken in ((b"\r\n--boundary--\r\n", True), (b"\r\n--boundaryX\r\n--boundary--\r\n", False)):
        if taken:
            assert at_once(form_fields(head + content + end, b"boundary")) == {"file": content}
            continue
        with pytest.raises(Refusal, match="inside a part"):
            at_once(form_fields(head + content + end, b"boundary"))


def test_the_name_of_a_part_has_an_end() -> None:
    """What stands there is taken to pieces in Python."""
    for more, taken in ((b";" * 900, True), (b";" * 1024, False)):
        raw = b'--b\r\nContent-Disposition: form-data; name="include[]"' + more + b"\r\n\r\nx\r\n--b--\r\n"
        if taken:
            assert at_once(form_fields(raw, b"b")) == {"include": b"x"}
            continue
        with pytest.raises(Refusal, match="Content-Disposition") as caught:
            at_once(form_fields(raw, b"b"))
        assert caught.value.code == "invalid_form"


def test_many_parts_are_refused() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="include[]"\r\n\r\nx\r\n'
    assert at_once(form_fields(part * MOST_FIELDS + b"--b--\r\n", b"b")) == {"include": b"x"}
    with pytest.raises(Refusal, match="more than"):
        at_once(form_fields(part * (MOST_FIELDS + 1) + b"--b--\r\n", b"b"))


@each_of(
    "kind",
    [None, "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=b"]
    + ["multipart/form-data; boundary=" + "b" * 71],
)
def test_what_is_no_form_is_refused(kind: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        form_boundary({} if kind is None else {"content-type": kind}, ())
    assert caught.value.code == "unsupported_media_type"


def test_a_page_of_another_origin_sends_no_forms() -> None:
    """A browser sends them without asking first, so a page could make a server on its visitor's machine work."""
    headers = {"content-type": "multipart/form-data; boundary=b", "host": "127.0.0.1:8000"}
    own, other = {"origin": "http://127.0.0.1:8000"}, {"origin": "https://a.example"}
    assert form_boundary(headers, ()) == form_boundary({**headers, **own}, ()) == b"b"
    for origin in (other, *({"origin": one} for one in ("null", "http://127.0.0.1:9000", "https://127.0.0.1:8000"))):
        with pytest.raises(Refusal) as caught:
            form_boundary({**headers, **origin}, ("https://b.example",))
        assert caught.value.kind == "forbidden"
    secure = {**headers, "origin": "https://127.0.0.1:8000"}
    assert form_boundary(secure, (), "https") == b"b"
    for allowed in ("https://a.example", "*"):
        assert form_boundary({**headers, **other}, (allowed,)) == b"b"


def test_events_join_to_the_answer() -> None:
    whole = answered(TranscriptSerializer(RequestContext("r1")), ACCEPTED, collected(DELTAS))
    written = TranscriptSerializer(RequestContext("r1"))
    events = parse_all([*(written.event(ACCEPTED, delta) for delta in DELTAS), written.closing(ACCEPTED, 3)])
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in events[:-1]) == whole["text"] == 'a "quote"\n\u2028你'
    assert events[-1] == {"type": "transcript.text.done", **whole}
    assert json.loads(json.dumps(whole["usage"])) == {
        "type": "tokens", "input_tokens": 10, "input_token_details": {"audio_tokens": 0, "text_tokens": 10},
        "output_tokens": 3, "total_tokens": 13,
    }  # fmt: skip
