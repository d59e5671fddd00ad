"""A process of its own: an honest client who asks a text chat and a picture chat at fixed moments, and who times them.

Run as `python -m tests.hostile.second_client URL QUESTIONS SECONDS_BETWEEN ADDRESS [KEY]`, by tests/hostile/measure.py
only; ADDRESS is its own. Each question has a connection of its own and is asked at its moment, whether or not earlier
ones are answered. The health route is asked beside them, five times a second. One JSON line on stdout says what came of
all.
"""

import asyncio
import json
import sys
import time
from typing import Any

import httpx

from tests.e2e.faults import GREEDY, SMALL

PATIENCE_SECONDS = 60.0
HEALTH_EVERY_SECONDS = 0.2
LOST = 0  # the status of a question without an answer
CHATS: tuple[list[dict[str, str]], ...] = ([{"text": "hello"}], [{"image": SMALL}, {"text": "what is this?"}])


async def ask(http: httpx.AsyncClient, body: dict[str, Any] | None) -> tuple[int, float]:
    """Status and seconds of one request: a chat, or the health route for None."""
    begun = time.monotonic()
    try:
        answer = await (http.get("/health/live") if body is None else http.post("/chat", json=body))
        return answer.status_code, time.monotonic() - begun
    except httpx.HTTPError:
        return LOST, time.monotonic() - begun


async def health(http: httpx.AsyncClient, over: asyncio.Event) -> list[tuple[int, float]]:
    seen = []
    while not over.is_set():
        seen.append(await ask(http, None))
        await asyncio.sleep(HEALTH_EVERY_SECONDS)
    return seen


async def converse(http: httpx.AsyncClient, questions: int, between: float) -> dict[str, list[tuple[int, float]]]:
    """All questions at their moments; status and seconds of each."""
    over = asyncio.Event()
    watching = asyncio.create_task(health(http, over))
    begun, asked = time.monotonic(), []
    for number in range(questions):
        turn, which = divmod(number, len(CHATS))  # a text and a picture at each moment
        await asyncio.sleep(max(0.0, begun + turn * between - time.monotonic()))
        body = {"inputs": CHATS[which], "parameters": GREEDY}
        asked.append(asyncio.create_task(ask(http, body)))
    answered = await asyncio.gather(*asked)
    over.set()
    return {"chats": answered, "health": await watching}


async def main(url: str, questions: int, between: float, address: str, key: str | None = None) -> None:
    fresh = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_keepalive_connections=0))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, transport=fresh, headers=headers) as http:
        await http.get("/version")  # what the client itself loads late is not measured
        print(json.dumps(await converse(http, questions, between)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
