"""What server and fetcher say arrives as it was said."""

from configs.fetch import FetchConfig
from server.fetching.messages import (
    PIECE_BYTES,
    CancelFetch,
    Fetch,
    FetchedPiece,
    FetchEnded,
    FromFetcher,
    StartFetcher,
    ToFetcher,
)
from shm import Channel, channel_pair
from tests.server.tables import each_of


@each_of(
    "message",
    [
        StartFetcher(config=FetchConfig(domains=("a.test",), networks=("10.0.0.0/8",)), user_agent="pixelferry/1"),
        Fetch(request_id="1", url="http://a.test/", max_bytes=5),
        CancelFetch(request_id="1"),
        FetchedPiece(request_id="1", data=bytes(PIECE_BYTES // 4)),
        FetchEnded(request_id="1", outcome="failed", why="it took more than 30 s"),
    ],
)
def test_a_message_arrives(message: ToFetcher | FromFetcher) -> None:
    ours, theirs = channel_pair()
    one: Channel[ToFetcher | FromFetcher] = Channel(ours, ToFetcher | FromFetcher)
    other: Channel[ToFetcher | FromFetcher] = Channel(theirs, ToFetcher | FromFetcher)
    one.send(message)
    assert other.recv(5) == message
    one.close()
    other.close()
