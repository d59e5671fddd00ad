"""The same hostile body again and again, over some connections, as an attack whose cost for others is measured."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import httpx

from tests.e2e.running import RunningServer
from tests.hostile.measure import Attack

MIB = 1 << 20
SERVER_BYTES = 256 * MIB  # of a server without a large body
BODY_BYTES = 3 * 64 * MIB  # what one body of 64 MiB is at most: as it came, parsed, packed for a worker
ATTACKERS = 2
JSON = {"content-type": "application/json"}


def words(n: int, length: int) -> list[str]:
    """Of Chinese characters, no two alike."""
    return [(chr(0x4E00 + i) + "".join(chr(0x4E00 + 7 * j % 9000) for j in range(length)))[:length] for i in range(n)]


def stops(n: int, length: int) -> list[str]:
    return [("ab" * length)[: length - 1] + chr(ord("A") + i) for i in range(n)]


def posting(
    name: str,
    url: str,
    body: Callable[[], bytes],
    expected: int,
    headers: dict[str, str] | None = None,
    n: int = ATTACKERS,
    late: float | None = None,
) -> Attack:
    """The same body again and again, over `n` connections; its answer is always `expected`."""

    @contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over, seen, content = threading.Event(), list[int](), body()

        def attack() -> None:
            with httpx.Client(base_url=server.url, timeout=120) as http:
                while not over.is_set():
                    seen.append(http.post(url, content=content, headers=headers or JSON).status_code)

        with until_over([attack] * n, over):
            yield
        assert len(seen) >= n and set(seen) == {expected}, sorted(set(seen))

    return Attack(name=name, go=go, memory_bytes=SERVER_BYTES + n * BODY_BYTES, late=late)


@contextmanager
def until_over(attacks: Iterable[Callable[[], None]], over: threading.Event) -> Iterator[None]:
    """Each attack goes on in a thread of its own through the block; `over` ends it, and all are waited for."""
    threads = [threading.Thread(target=attack) for attack in attacks]
    with contextlib.ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        yield
