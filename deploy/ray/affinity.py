"""Which replica likely has a request's beginning cached: a digest of it, and replicas in the order that it gives."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

SLACK = 1.25  # how much more than its share of all requests in flight the replica of a digest may have
FEW = 4  # that it may have beyond its share at least: so few more in a batch take hardly longer, a cold cache does
KEYS = (b"authorization", b"x-api-key")
# Keys of a part, in the words of /chat, OpenAI and Anthropic, below which its medium is found.
POINTERS = ("image", "video", "audio", "image_url", "video_url", "audio_url", "input_audio", "source", "url", "data")


class Beginning(msgspec.Struct):
    """The fields of every route's body that open its prompt, and whose caches it shares."""

    messages: list[msgspec.Raw] | None = None  # OpenAI's and Anthropic's
    history: list[Any] | None = None  # /chat
    inputs: Any = None
    input: Any = None  # /v1/responses
    prompt: Any = None  # /v1/completions
    system: Any = None
    instructions: Any = None
    cache_salt: Any = None


def digest_of(headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Of the first user turn: its media, where it has any, else system text and that turn. b"" for what has no turn.

    A conversation keeps it from turn to turn, and questions about one picture share it, in whichever dialect they
    come. What keeps caches apart, the API key and the body's `cache_salt`, keeps digests apart. Takes 1 ms for 1 MiB
    of body.
    """
    try:
        read = msgspec.json.decode(body, type=Beginning)
        turn, system = _first_turn(read)
        parts = turn if isinstance(turn, list) else []
        media = [_pointed_at(part) for part in parts if isinstance(part, dict) and "text" not in part]
    except (msgspec.DecodeError, RecursionError):
        return b""  # the replica says what is wrong with it
    if turn is None:
        return b""
    salts = [value.rpartition(b" ")[2] for name, value in headers if name in KEYS]
    opening: Any = media or [system, turn]
    return hashlib.sha256(msgspec.json.encode([salts, read.cache_salt, opening])).digest()


def _first_turn(read: Beginning) -> tuple[Any, Any]:
    """Its content, and the system text before it."""
    if read.messages is not None:
        system = [read.system]
        for raw in read.messages:
            message = msgspec.json.decode(raw)
            if not isinstance(message, dict):
                break
            if message.get("role") == "user":
                return message.get("content"), system
            system.append(message.get("content"))
        return None, None
    if read.history and isinstance(read.history[0], dict):
        return read.history[0].get("inputs"), read.system
    if isinstance(read.input, list) and read.input and isinstance(read.input[0], dict):
        turns = [item for item in read.input if isinstance(item, dict) and item.get("role") == "user"]
        return (turns[0].get("content") if turns else None), read.instructions
    first = next((field for field in (read.inputs, read.input, read.prompt) if field is not None), None)
    return first, read.system or read.instructions


def _pointed_at(value: Any) -> Any:
    """A medium's path or URL, or the base64 in it: the same in a part of each dialect. Options of a part do not count.

    Of a part that is none of theirs, itself.
    """
    if isinstance(value, str):
        return value.partition(",")[2] if value[:5].lower() == "data:" else value
    if isinstance(value, list):
        return [_pointed_at(one) for one in value]
    if isinstance(value, dict):
        for key in POINTERS:
            if value.get(key) is not None:
                return _pointed_at(value[key])
    return value


def order(digest: bytes, replicas: Sequence[str]) -> list[str]:
    """The replicas, the one that a digest belongs to first (highest random weight: Thaler and Ravishankar, 1998).

    When one goes, the digests of the others stay where they are; a new one takes its share from all.
    """
    return sorted(replicas, key=lambda replica: hashlib.sha256(digest + replica.encode()).digest())


def preferred(digest: bytes, in_flight: Mapping[str, int], most: int) -> list[str]:
    """The order in which replicas are tried: those within their bound first (Mirrokni et al., 2018), as in `order`.

    in_flight: requests of each replica. A replica takes at most SLACK times its share of them and of the new one, or
    FEW more than that share, so that one picture that everybody asks about does not wait for one replica while others
    have nothing to do.
    most: what a replica's server takes at once; it would refuse what another one has room for.
    """
    share = (sum(in_flight.values()) + 1) / max(1, len(in_flight))
    bound = min(most, math.ceil(max(SLACK * share, share + FEW)))
    ordered = order(digest, list(in_flight))
    within = [replica for replica in ordered if in_flight[replica] < bound]
    return [*within, *sorted((one for one in ordered if in_flight[one] >= bound), key=in_flight.__getitem__)]
