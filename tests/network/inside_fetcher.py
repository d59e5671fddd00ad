"""Run inside a namespace: fetches what stdin says, each by the real MediaFetcher, and prints what became of it."""

import asyncio
import dataclasses
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from configs.fetch import FetchConfig
from server.fetching.fetch import FetchFailed, MediaFetcher, TooLarge
from server.fetching.target import ForbiddenUrl
from tests.network.certificates import contexts_of, write_authority
from tests.network.names import NameServer
from tests.network.namespace import NAME_SERVER
from tests.network.origins import Origins
from tests.network.proxy import Proxy

MEDIUM = bytes(range(256)) * 40
MAX_BYTES = 1 << 20
HEAD_SECONDS, SECONDS = 1.0, 2.5  # for those that are slow


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one URL of `urls`, fetched in the time that their limits leave, or of `slow`, in little."""

    outcome: str
    why: str
    nbytes: int  # that were handed on
    pieces: int
    seconds: float
    good: bool  # they are the medium


async def fetched(fetcher: MediaFetcher, url: str) -> Outcome:
    found: list[bytes] = []

    async def take(data: bytes) -> None:
        found.append(data)

    begun, why = time.monotonic(), ""
    try:
        await fetcher.fetch(url, MAX_BYTES, take)
        outcome = "whole"
    except ForbiddenUrl as error:
        outcome, why = "forbidden", str(error)
    except FetchFailed as error:
        outcome, why = "failed", str(error)
    except TooLarge:
        outcome = "large"
    data = b"".join(found)
    return Outcome(
        outcome=outcome, why=why, nbytes=len(data), pieces=len(found), seconds=time.monotonic() - begun,
        good=data == MEDIUM,
    )  # fmt: skip


async def all_fetched(fetcher: MediaFetcher, urls: list[str]) -> list[Outcome]:
    return list(await asyncio.gather(*(fetched(fetcher, url) for url in urls)))


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    directory = Path(sys.argv[1])
    contexts = {}
    if asked.get("tls"):
        write_authority(directory)
        contexts = contexts_of(directory)
        asked["config"]["ca"] = directory / "ca.pem"
    proxy = Proxy(3128)
    names, origins = NameServer(NAME_SERVER), Origins(MEDIUM, contexts)
    config = msgspec.convert(asked["config"], FetchConfig, dec_hook=lambda kind, value: value)
    resolvers = ThreadPoolExecutor(64)
    hasty = msgspec.structs.replace(config, first_byte_seconds=HEAD_SECONDS, seconds=SECONDS)
    found = asyncio.run(all_fetched(MediaFetcher(config, "pixelferry/test", resolvers), asked["urls"]))
    found += asyncio.run(all_fetched(MediaFetcher(hasty, "pixelferry/test", resolvers), asked["slow"]))
    told = {
        "fetched": [dataclasses.asdict(one) for one in found],
        "forbidden": origins.forbidden(),
        "connected": origins.connected,
        "requests": [head.decode("latin-1") for head in origins.requests],
        "asked": names.asked,
        "proxied": proxy.asked,
    }
    print(json.dumps(told), flush=True)
    os._exit(0)  # a resolver still waits for the name server that is silent


if __name__ == "__main__":
    main()
