"""The messages between the server and the process that fetches media by URL."""

from typing import Literal

import msgspec

from configs.fetch import FetchConfig

PIECE_BYTES = 1 << 18  # of a medium in one message, and of the last one less

# ---- server -> fetcher


class StartFetcher(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message."""

    config: FetchConfig
    user_agent: str


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answered by FetchedPiece, any number of them, and then by FetchEnded."""

    request_id: str  # ours; one for each medium
    url: str  # as the client wrote it
    max_bytes: int


class CancelFetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody wants it any more. One that is not over yet is answered by FetchEnded all the same."""

    request_id: str


# ---- fetcher -> server

# forbidden: the client named what it may not; failed: the origin gave nothing that can be used; large: more than may be
FetchOutcome = Literal["whole", "forbidden", "failed", "large", "cancelled", "internal"]


class FetcherReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It can be asked."""


class FetcherPulse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent every half second by the loop that fetches."""


class FetchedPiece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The next bytes of a medium."""

    request_id: str
    data: bytes


class FetchEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last word on one medium. `why` names no address, and no byte of what came."""

    request_id: str
    outcome: FetchOutcome
    why: str = ""


ToFetcher = StartFetcher | Fetch | CancelFetch
FromFetcher = FetcherReady | FetcherPulse | FetchedPiece | FetchEnded
