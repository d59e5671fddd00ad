"""Run inside a namespace: a whole server with `--allowed-media-domain *`, asked on every route; prints what it said."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.running import RunningServer, data_url, picture, running
from tests.network import corpus
from tests.network.names import NameServer
from tests.network.namespace import NAME_SERVER
from tests.network.origins import Origins

PICTURE = picture(64, 64)
DECODERS = re.compile(r"libtorch|/av(?:\.libs)?/|/soxr/|libavcodec|/PIL/|pillow\.libs")
CHATS = 30
EACH = 8  # of the corpus, the part that each further place of a route is asked for
TRICKLING = 16
OTHERS_FILES = {  # that name a file of another host, by the kind that somebody may send them as
    "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://10.0.0.1/medium\n#EXT-X-ENDLIST\n",
    "concat": b"ffconcat version 1.0\nfile 'http://10.0.0.1/medium'\nduration 1\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="http://10.0.0.1/medium"/></svg>',
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>http://10.0.0.1/</BaseURL></MPD>',
    "sdp": b"v=0\no=- 0 0 IN IP4 10.0.0.1\ns=x\nc=IN IP4 10.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
}


def openai(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tiny-omni", "max_tokens": 2, "messages": [{"role": "user", "content": list(parts)}]}


def native(part: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"inputs": [part, {"text": "Hi"}], "parameters": {"max_tokens": 2}, **rest}


Place = tuple[str, Callable[[str], dict[str, Any]]]
# Every place of a body that names a medium, by route; a route that is not there (yet) is left out.
PLACES: tuple[Place, ...] = (
    ("/chat", lambda url: native({"image": url})),
    ("/chat", lambda url: native({"video": url})),
    ("/chat", lambda url: native({"audio": url})),
    ("/chat", lambda url: native({"video": [url, url]})),
    ("/chat", lambda url: native({"text": "a"}, stream=True, history=[{"inputs": [{"image": url}], "text": "b"}])),
    ("/v1/chat/completions", lambda url: openai({"type": "image_url", "image_url": {"url": url}})),
    ("/v1/chat/completions", lambda url: openai({"type": "video_url", "video_url": {"url": url}})),
    ("/v1/chat/completions", lambda url: {**openai({"type": "audio_url", "audio_url": {"url": url}}), "stream": True}),
    ("/tokenize", lambda url: openai({"type": "image_url", "image_url": {"url": url}})),
    (
        "/v1/responses",
        lambda url: {
            "model": "tiny-omni", "max_output_tokens": 16, "store": False,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
        },
    ),
    (
        "/v1/messages",
        lambda url: {
            "model": "tiny-omni", "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}],
        },
    ),
    (
        "/v1/messages/count_tokens",
        lambda url: {
            "model": "tiny-omni",
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}],
        },
    ),
)  # fmt: skip


def said(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message."""
    if answer.status_code == 200:
        return 200, "", ""
    error = answer.json()["error"]
    return answer.status_code, str(error.get("code")), f"{error.get('param')}: {error['message']}"


def absent(code: str) -> bool:
    return code in ("route_not_found", "route_not_supported", "method_not_allowed")


def every_place(server: RunningServer, urls: list[str]) -> dict[str, Any]:
    """What each place says of a good URL, and of each of `urls` where it is not as it should be.

    The first place of a route is asked for all of them.
    """
    found: dict[str, Any] = {}
    asked = set[str]()
    for i, (route, body) in enumerate(PLACES):
        good = said(server.http.post(route, json=body("http://public.test/medium")))
        if absent(good[1]):
            continue
        wrong = []
        for url in urls[i % EACH :: EACH] if route in asked else urls:
            status, code, message = said(server.http.post(route, json=body(url)))
            unknown = code == "media_fetch_failed" and "cannot be resolved" in message
            if status != 400 or not (code == "media_url_forbidden" or unknown):
                wrong.append((url, status, code, message))
        asked.add(route)
        found[f"{i} {route}"] = {"good": good, "wrong": wrong}
    return found


def median(server: RunningServer) -> float:
    """Seconds of a chat with an inline picture, which nothing has seen before: a held worker delays every one."""
    took = []
    for seed in range(CHATS):
        inline = data_url(picture(96, 96, time.monotonic_ns() % (1 << 32) + seed))
        begun = time.monotonic()
        answer = server.http.post("/chat", json=native({"image": inline}))
        took.append(time.monotonic() - begun)
        assert answer.status_code == 200, answer.text
    return sorted(took)[len(took) // 2]


@contextlib.contextmanager
def trickling(server: RunningServer, origins: Origins) -> Iterator[list[tuple[int, str, str]]]:
    ended: list[tuple[int, str, str]] = []

    def ask(i: int) -> None:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            ended.append(said(client.post("/chat", json=native({"image": f"http://public.test/trickle/{i}"}))))

    n, threads = len(origins.requests), [threading.Thread(target=ask, args=(i,)) for i in range(TRICKLING)]
    for thread in threads:
        thread.start()
    while len(origins.requests) < n + TRICKLING:
        time.sleep(0.02)
    yield ended
    for thread in threads:
        thread.join()


def once_asked(origins: Origins, before: int, pid: int, number: int) -> None:
    """Send the signal when an origin has another request."""
    while len(origins.requests) == before:
        time.sleep(0.02)
    os.kill(pid, number)


def dying(server: RunningServer, origins: Origins) -> dict[str, Any]:
    """What a request says whose fetcher is killed, or stopped, and the next one; and what the metrics count."""
    found: dict[str, Any] = {}
    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        (pid,) = server.children("fetcher")
        threading.Thread(target=once_asked, args=(origins, len(origins.requests), pid, number)).start()
        found[name] = said(server.http.post("/chat", json=native({"image": "http://public.test/silent"})))
        found[f"after {name}"] = said(server.http.post("/chat", json=native({"image": "http://public.test/medium"})))
    found["restarts"] = server.metric('child_restarts_total{role="fetcher"}')
    found["hangs"] = server.metric('child_hangs_total{role="fetcher"}')
    return found


def left(server: RunningServer, origins: Origins) -> bool:
    """Whether the connection of a client's medium is closed once the client has gone."""
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{server.url}/chat", json=native({"image": "http://public.test/gone"}), timeout=2)
    return origins.gone.wait(5)


def main() -> None:
    names, origins = NameServer(NAME_SERVER), Origins(PICTURE)
    model, root, logs = map(Path, sys.argv[1:])
    files = {f"http://public.test/file?of={name}": name for name in OTHERS_FILES}
    origins.files = OTHERS_FILES
    flags = ["--workers", "1", "--media-fetch-seconds", "20", "--media-first-byte-seconds", "6", "--pulse-seconds", "2"]
    with running(model, root, logs, "--allowed-media-domain", "*", *flags) as server:
        (pid,) = server.children("fetcher")
        told: dict[str, Any] = {"maps": DECODERS.findall(Path(f"/proc/{pid}/maps").read_text())}
        told["places"] = every_place(server, [url for url in corpus.all_forbidden() if "://" in url])
        told["files"] = {
            f"{kind} {name}": said(server.http.post("/chat", json=native({kind: url})))
            for url, name in files.items()
            for kind in ("image", "video", "audio")
        }
        told["left"] = left(server, origins)
        told["quiet"] = median(server)
        with trickling(server, origins) as ended:
            told["trickling"], told["ended while they trickled"] = median(server), len(ended)
        told["trickled"] = ended
        told["dying"] = dying(server, origins)
        told["held"] = server.metric("mm_inflight_bytes")
        server.assert_nothing_held()
    told |= {"forbidden": origins.forbidden(), "asked": names.asked, "heads": len(origins.requests)}
    print(json.dumps(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
