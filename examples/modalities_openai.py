"""Each modality through the OpenAI SDK: python examples/modalities_openai.py [--base-url URL]."""

import argparse
import base64
from pathlib import Path
from typing import Any

from openai import OpenAI

MEDIA = Path(__file__).resolve().parent / "media"


def encoded(name: str) -> str:
    """A file of examples/media in base64."""
    return base64.b64encode((MEDIA / name).read_bytes()).decode("ascii")


def text(words: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "text", "text": words}


# `video_url` and `audio_url` are no part of OpenAI's own interface; the SDK passes them on as they are.
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded('red-circle.png')}"}}
CLIP = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded('moving-right.mp4')}"}}
BEEPS = {"type": "input_audio", "input_audio": {"data": encoded("three-beeps.wav"), "format": "wav"}}
GLIDE = {"type": "audio_url", "audio_url": {"url": f"data:audio/mpeg;base64,{encoded('rising.mp3')}"}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "image_url": [PICTURE, text("What is in this picture?")],
    "video_url": [CLIP, text("Which way does it move?")],
    "input_audio": [BEEPS, text("How many beeps do you hear?")],
    "audio_url": [GLIDE, text("Does the tone rise or fall?")],
    "all of them": [PICTURE, CLIP, BEEPS, text("How many beeps are in the recording?")],
    "Chinese": [PICTURE, text("图中是什么？")],
}


def main() -> None:
    """Ask each, print each answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    given = parser.parse_args()
    client = OpenAI(base_url=given.base_url, api_key="none")  # the server asks for no key; the SDK insists on one
    model = client.models.list().data[0].id
    for name, content in CHATS.items():
        messages: Any = [{"role": "user", "content": content}]  # the SDK's types know only some of these parts
        answer = client.chat.completions.create(model=model, max_tokens=64, messages=messages)
        print(f"{name:12} {content[-1]['text']}  {answer.choices[0].message.content}")


if __name__ == "__main__":
    main()
