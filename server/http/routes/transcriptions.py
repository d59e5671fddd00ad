"""POST /v1/audio/transcriptions: a form with a sound becomes a chat that asks for its words, the answer."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pybase64
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from model.family import Transcription
from server.http.large_bodies import Steps
from server.http.responses import data
from server.http.routes.answer_fields import usage
from server.http.routes.vllm_fields import VllmField, refuse_unsupported, tell_misspelt
from server.http.validation import validated
from server.request_context import RequestContext
from server.requests.answer import Delta
from server.requests.refusal import forbidden, invalid_request, listed
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tokenization.chat.dialects import read_text
from tokenization.chat.parts import Chat, Media, Text, Turn
from tokenization.messages import Prepared

MOST_FIELDS = 32  # of a form
MOST_TEXT = 1 << 18  # bytes of a field that is no file
MOST_DISPOSITION = 1024  # bytes that name a part, and its file
SLICE = 3 << 18  # bytes that are read in one step, in whole groups of base64
FORMATS = ("json", "text")
FLAGS = {"true": True, "false": False}
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z -]{1,39}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan", re.IGNORECASE)
LONGEST_NUMBER = 64  # characters; a float needs 24
_TIMES = "these models say words without times; leave it out"
REFUSED = tuple(
    VllmField(name=name, treatment="refused", note=note, neutral=("",))
    for name, note in (
        ("timestamp_granularities", _TIMES),
        ("include", "not supported; a chat with the sound has logprobs"),
        ("known_speaker_names", "these models do not tell speakers apart; leave it out"),
        ("known_speaker_references", "these models do not tell speakers apart; leave it out"),
        *(
            (name, "not taken here: the likeliest words are the transcript; a chat with the sound takes it")
            for name in SamplingRequest.model_fields
            if name != "temperature"
        ),
    )
)
LISTS = frozenset(field.name for field in REFUSED)
TAKEN = ("file", "model", "prompt", "language", "temperature", "response_format", "stream", "cache_salt")
KNOWN = LISTS.union(TAKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest:
    """A chat that asks for the words of a sound, and whether these alone are the answer."""

    request: ChatRequest
    plain: bool

    @property
    def model(self) -> str | None:
        return self.request.model


def form_boundary(headers: Mapping[str, str], origins: Collection[str], scheme: str = "http") -> bytes:
    """What stands between the fields of a form's body. Raises Refusal for what is no form.

    Pages may send forms to any address without asking first; their browser says where they are from. origins: of pages
    that may, beside those of this server, which is asked by `scheme`.
    """
    kind, options = parse_options_header(headers.get("content-type"))
    if kind != b"multipart/form-data" or not 0 < len(options.get(b"boundary", b"")) <= 70:
        message = "the Content-Type must be multipart/form-data with its boundary"
        raise invalid_request(message, code="unsupported_media_type")
    origin = headers.get("origin")
    own = origin is None or origin == f"{scheme}://{headers.get('host')}"
    if not own and "*" not in origins and origin not in origins:
        raise forbidden(
            "no page of this origin may send forms here: --allowed-origins names who may", "origin_not_allowed"
        )
    return options[b"boundary"]


def form_fields(raw: bytes | bytearray, boundary: bytes) -> Steps[dict[str, bytearray]]:
    """The fields of a form by name, without the brackets of those that are lists. Raises Refusal."""
    yield from _check_boundaries(raw, b"\r\n--" + boundary)
    fields: dict[str, bytearray] = {}
    header, value, disposition = bytearray(), bytearray(), bytearray()
    content, ended, n_parts = bytearray(), False, 0

    def begin() -> None:
        disposition.clear()

    def header_ends() -> None:
        if header.lower() == b"content-disposition":
            disposition[:] = value
        header.clear()
        value.clear()

    def headers_end() -> None:
        nonlocal content, n_parts
        n_parts += 1
        name = _part_name(bytes(disposition))
        if name in fields and name not in LISTS:
            raise invalid_request(f"{listed([name])} stands there twice", name, "invalid_form")
        if n_parts > MOST_FIELDS:
            raise invalid_request(f"the form has more than {MOST_FIELDS} fields", code="invalid_form")
        content = fields[name] = bytearray()

    def end() -> None:
        nonlocal ended
        ended = True

    def add(piece: bytes, start: int, stop: int) -> None:
        content.extend(memoryview(piece)[start:stop])

    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": begin, "on_part_data": add, "on_headers_finished": headers_end, "on_end": end,
            "on_header_field": lambda piece, start, stop: header.extend(piece[start:stop]),
            "on_header_value": lambda piece, start, stop: value.extend(piece[start:stop]),
            "on_header_end": header_ends,
        },
    )  # fmt: skip
    try:
        for start in range(0, len(raw), SLICE):
            parser.write(bytes(raw[start : start + SLICE]))
            yield
    except MultipartParseError as error:
        raise invalid_request(f"the body is not a valid form: {error}", code="invalid_form") from None
    if not ended:
        raise invalid_request("the body is not a valid form: it ends before its last boundary", code="invalid_form")
    return fields


def _part_name(disposition: bytes) -> str:
    """Raises Refusal."""
    if len(disposition) > MOST_DISPOSITION:
        message = f"a part of the form has a Content-Disposition of more than {MOST_DISPOSITION} bytes"
        raise invalid_request(message, code="invalid_form")
    kind, options = parse_options_header(disposition)
    name = options.get(b"name", b"").decode("utf-8", "replace").removesuffix("[]")
    if kind != b"form-data" or not name:
        raise invalid_request("a part of the form has no name", code="invalid_form")
    return name


def _check_boundaries(raw: bytes | bytearray, line: bytes) -> Steps[None]:
    """Raise Refusal for what looks like a boundary and is none, and for too many: the parser weighs each in Python."""
    end = n = 0
    for start in range(0, len(raw), SLICE):
        last = start + SLICE + len(line) - 1  # of those that begin in this slice
        while (at := raw.find(line, max(start, end), last)) >= 0:
            n, end = n + 1, at + len(line)
            if n > MOST_FIELDS + 1 or raw[end : end + 2] not in (b"\r\n", b"--"):
                raise invalid_request(
                    "the body is not a valid form: its boundary is inside a part", code="invalid_form"
                )
        yield


def read_transcription(
    raw: bytes | bytearray, request_id: str, *, boundary: bytes, own: Transcription | None
) -> Steps[TranscriptionRequest]:
    """The body of POST /v1/audio/transcriptions; own: how the model's family asks. Raises Refusal and ChatError."""
    form = yield from form_fields(raw, boundary)
    sound = form.pop("file", None)
    if not sound:
        raise invalid_request("file: a sound is needed", "file")
    fields = {name: text for name, value in form.items() if (text := _text(value, name))}
    refuse_unsupported(fields, REFUSED)
    tell_misspelt(fields, request_id, KNOWN)
    kind = fields.get("response_format", "json")
    if kind not in FORMATS:
        times = f": {_TIMES}" if kind in ("verbose_json", "srt", "vtt", "diarized_json") else ""
        raise invalid_request(f"response_format: takes {' and '.join(FORMATS)}{times}", "response_format")
    stream = FLAGS.get(fields.get("stream", "false").lower())
    if stream is None:
        raise invalid_request("stream: must be true or false", "stream")
    source = "data:audio/wav;base64,"
    for start in range(0, len(sound), SLICE):
        source += pybase64.b64encode_as_string(memoryview(sound)[start : start + SLICE])  # grows where it lies
        yield
    sound.clear()  # megabytes take their time to go: a step of its own
    yield
    return TranscriptionRequest(
        request=ChatRequest(
            id=request_id,
            chat=_chat(Media(kind="audio", source=source, param="file"), fields, own),
            chat_param="prompt",
            model=fields.get("model"),
            sampling=validated(SamplingRequest, {"temperature": _number(fields.get("temperature", "0"))}),
            stream=stream,
            cache_salt=fields.get("cache_salt", ""),
        ),
        plain=kind == "text",
    )


def _text(value: bytearray, name: str) -> str:
    if len(value) > MOST_TEXT:
        raise invalid_request(f"{listed([name])} has more than {MOST_TEXT} bytes", name)
    try:
        return read_text(value.decode("utf-8"), name)
    except UnicodeDecodeError:
        raise invalid_request(f"{listed([name])} must be text in UTF-8", name) from None


def _number(value: str) -> float | str:
    """A word that is no number of JSON's kind is refused as one of another type."""
    return float(value) if len(value) <= LONGEST_NUMBER and _NUMBER.fullmatch(value) else value


def _chat(source: Media, fields: Mapping[str, str], own: Transcription | None) -> Chat:
    """The words that ask for a transcript are the client's, or the family's."""
    asked = fields.get("prompt", "")
    turns: tuple[Turn, ...] = ()
    if not asked and own is not None:
        asked = own.prompt
        turns = (Turn(role="system", parts=(Text(text=own.system),), plain=True, param="prompt"),) if own.system else ()
    language = fields.get("language")
    if language is not None:
        if not _LANGUAGE.fullmatch(language):
            raise invalid_request("language: must be a code such as en, or a name", "language")
        asked = f"{asked} The language is {language}."
    return Chat(turns=(*turns, Turn(role="user", parts=(source, Text(text=asked)), plain=False, param="prompt")))


class TranscriptSerializer:
    """POST /v1/audio/transcriptions. The last event has all of the words again, as OpenAI's clients read it."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._texts: list[str] = []

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        return {"text": answers[0].text, "usage": self._usage(prepared, n_tokens)}

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        self._texts.append(delta.text)
        return data({"type": "transcript.text.delta", "delta": delta.text}) if delta.text else b""

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        text = "".join(self._texts)
        return data({"type": "transcript.text.done", "text": text, "usage": self._usage(prepared, n_tokens)})

    def _usage(self, prepared: Prepared, n_tokens: int) -> dict[str, Any]:
        """As `usage` has it, by the names of this route."""
        counts = usage(prepared, n_tokens, self._context)
        heard = counts["prompt_tokens_details"].get("audio_tokens", 0)
        return {
            "type": "tokens",
            "input_tokens": counts["prompt_tokens"],
            "input_token_details": {"audio_tokens": heard, "text_tokens": counts["prompt_tokens"] - heard},
            "output_tokens": n_tokens,
            "total_tokens": counts["total_tokens"],
            **({"timings": counts["timings"]} if "timings" in counts else {}),
        }
