"""Requests with a secret in every field, header and part of the address, which no log may show."""

import base64
import socket
from typing import Any

import httpx

from tests.e2e.faults import SMALL
from tests.e2e.running import RunningServer

SECRET = "pst-4711-hush"
JSON = {"content-type": "application/json"}


def sent_everywhere(server: RunningServer) -> None:
    """Requests with the secret in every field, header and part of the address; good ones, bad ones and no HTTP."""
    hidden = base64.b64encode(SECRET.encode()).decode()
    headers = {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET, "cookie": SECRET, "user-agent": SECRET}
    headers |= {"x-forwarded-for": SECRET, "x-request-id": f"{SECRET} x", "referer": f"http://{SECRET}/"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        media_everywhere(client, hidden)
        fields_everywhere(client)
        for path in (f"/v1/models/{SECRET}", f"/data:image/png;base64,{hidden}", f"/%0a{SECRET}%20/x"):
            client.get(path)
            client.post(path, content=SECRET)
    garbage_everywhere(server)


def media_everywhere(client: httpx.Client, hidden: str) -> None:
    broken = f"data:image/png;base64,{hidden}"
    for stream in (False, True):
        for parts in (
            [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {"url": SMALL}}],
            [{"type": "image_url", "image_url": {"url": broken}}],
            [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + SECRET * 9000}}],
            [{"type": "image_url", "image_url": {"url": f"https://{SECRET}/x.png"}}],
            [{"type": "image_url", "image_url": {"url": f"file:///{SECRET}" + "x" * 5000}}],
            [{"type": "video_url", "video_url": {"url": broken.replace("image/png", "video/mp4")}}],
            [{"type": SECRET, SECRET: SECRET}],
        ):
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2, "stream": stream, "user": SECRET}
            client.post("/v1/chat/completions", params={"key": SECRET}, json=body)


def fields_everywhere(client: httpx.Client) -> None:
    message = {"role": "user", "content": "Hi"}
    wrong: list[Any] = [SECRET, [SECRET], {SECRET: SECRET}]
    for field in ("model", "temperature", "stop", "logit_bias", "bad_words", "tools", "seed", "stream", SECRET):
        for value in wrong:
            client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 1, field: value})
    for value in (*wrong, [{"role": SECRET, "content": SECRET}], [{SECRET: SECRET}]):
        client.post("/v1/chat/completions", json={"messages": value})
        client.post("/chat", json={"inputs": value})
        client.post("/tokenize", json=value)
        client.post("/v1/completions", json={"prompt": value, "max_tokens": 1, "echo": True, "logprobs": 1})
        client.post("/tokenize", json={"prompt": value})
        client.post("/detokenize", json={"tokens": value})
    client.post("/chat", content=f'{{"inputs": "{SECRET}'.encode(), headers=JSON)


def garbage_everywhere(server: RunningServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for garbage in (f"{SECRET}\r\n\r\n", f"GET /{SECRET} HTTP/1.1\r\n{SECRET}\x00: a\r\n\r\n"):
        for _ in range(20):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(garbage.encode())
                assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
