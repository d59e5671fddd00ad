"""Media that a chat names by http(s): fetched, counted with its body, and put into their places."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from configs.fetch import MAX_URL
from server.children.fetcher import Fetcher, FetcherDied, FetchGaveWay
from server.children.replies import NobodyUp
from server.fetching.messages import FetchedPiece, FetchEnded
from server.requests.prompts import run_together
from server.requests.refusal import Refusal, gave_way, internal, invalid_request, overloaded, unavailable
from server.requests.request import ChatRequest
from tokenization.chat.errors import of_frame
from tokenization.chat.parts import FORBIDDEN_URL, Chat, Fetched, Media

FAILED, TOO_LARGE = "media_fetch_failed", "media_too_large"
MOST_URLS = 1024  # of one chat
_ErrorField = tuple[str, str]  # a field, and what a message about a picture of its list begins with; else ""


def by_url(source: str | Fetched) -> bool:
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))


async def fetch_media(request: ChatRequest, fetcher: Fetcher) -> ChatRequest:
    """The same request with bytes in the place of each URL. Raises Refusal, which names the part."""
    chat = request.chat
    if not isinstance(chat, Chat):
        return request
    places: dict[str, _ErrorField] = {}  # by URL: one that stands there twice is fetched once
    uses: Counter[str] = Counter()  # and sent to the worker as often as it stands there
    for medium in chat.media:
        for i, source in enumerate((medium.source, *medium.frames)):
            if isinstance(source, str) and by_url(source):
                place = medium.param, of_frame(i - 1) if i else ""
                if len(source) > MAX_URL:
                    raise _refused(place, f"the URL has more than {MAX_URL} characters", FORBIDDEN_URL)
                places.setdefault(source, place)
                uses[source] += 1
    if not places:
        return request
    if len(places) > MOST_URLS:
        message = f"the chat names {len(places)} media by URL; this server fetches {MOST_URLS}"
        raise invalid_request(message, places[list(places)[MOST_URLS]][0], "too_many_parts")
    found: dict[str, Fetched] = {}
    download = _Download(request, fetcher, found)
    await run_together([download.one(url, place, uses[url]) for url, place in places.items()])

    def placed(medium: Media) -> Media:
        frames = tuple(found.get(one, one) if isinstance(one, str) else one for one in medium.frames)
        source = found.get(medium.source, medium.source) if isinstance(medium.source, str) else medium.source
        return msgspec.structs.replace(medium, source=source, frames=frames)

    turns = tuple(
        msgspec.structs.replace(
            turn, parts=tuple(placed(part) if isinstance(part, Media) else part for part in turn.parts)
        )
        for turn in chat.turns
    )
    return replace(request, chat=msgspec.structs.replace(chat, turns=turns))


class _Download:
    """The media of one request, which count together."""

    def __init__(self, request: ChatRequest, fetcher: Fetcher, found: dict[str, Fetched]) -> None:
        self._context = request.context
        self._fetcher = fetcher
        self._found = found
        self._n = 0  # bytes so far
        # More at once would only make the line longer, which everybody's jobs are looked up in.
        self._at_once = asyncio.Semaphore(fetcher.limits.client_at_once)

    async def one(self, url: str, place: _ErrorField, uses: int) -> None:
        """uses: how often it stands in the chat. Raises Refusal."""
        pieces: list[bytes] = []
        try:
            async with self._at_once:
                job = await self._fetcher.begin(url, self._context.client)
                try:
                    ended = None
                    while ended is None:
                        ended = self._taken(await job.next(), pieces, place[0], uses)
                finally:
                    self._fetcher.cancel(job)
        except NobodyUp:
            raise unavailable("nothing can be fetched now", "fetcher_down", retry_after=10) from None
        except FetchGaveWay:
            raise gave_way() from None
        except FetcherDied:
            raise unavailable("the process that fetches media ended", "fetcher_died", retry_after=1) from None
        if ended.outcome != "whole":
            raise self._failed(ended, place)
        self._found[url] = Fetched(data=await asyncio.to_thread(b"".join, pieces))

    def _taken(
        self, answers: Sequence[FetchedPiece | FetchEnded], pieces: list[bytes], param: str, uses: int
    ) -> FetchEnded | None:  # fmt: skip
        """The last word, once it has come. Raises Refusal for more bytes than there is room for."""
        body, most = self._context.body, self._fetcher.limits.max_bytes
        for answer in answers:
            if isinstance(answer, FetchEnded):
                return answer
            size = len(answer.data) * uses
            self._n += size
            if self._n > most:
                message = f"the media of this request by URL have more than {most >> 20} MiB (--max-fetched-mib)"
                raise invalid_request(message, param, TOO_LARGE)
            if body is not None and not body.hold(size):
                raise overloaded("there is no room for what is fetched for this request", "bodies_full")
            pieces.append(answer.data)
        return None

    def _failed(self, ended: FetchEnded, place: _ErrorField) -> Refusal:
        """What the client is told of a medium that did not come."""
        if ended.outcome == "forbidden":
            return _refused(place, ended.why, FORBIDDEN_URL)
        if ended.outcome == "large":
            most = self._fetcher.max_file_bytes
            return _refused(place, f"the file is larger than the allowed {most} bytes", TOO_LARGE)
        if ended.outcome == "failed":
            return _refused(place, f"the medium could not be fetched: {ended.why}", FAILED)
        return internal("a medium could not be fetched")


def _refused(place: _ErrorField, message: str, code: str) -> Refusal:
    param, frame = place
    return invalid_request(frame + message, param, code)
