"""One streamed chat with a picture through the OpenAI SDK: python examples/chat_openai.py [PICTURE] [QUESTION]."""

import argparse
import base64
from pathlib import Path

from openai import OpenAI

CIRCLE = Path(__file__).resolve().parent / "media" / "red-circle.png"
TYPES = {".png": "image/png", ".webp": "image/webp", ".gif": "image/gif", ".bmp": "image/bmp"}


def data_url(picture: Path) -> str:
    """A picture's bytes as the API takes them."""
    kind = TYPES.get(picture.suffix.lower(), "image/jpeg")
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"


def main() -> None:
    """Ask, and print the answer as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path, default=CIRCLE)
    parser.add_argument("question", nargs="?", default="What is in this picture?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    given = parser.parse_args()

    client = OpenAI(base_url=given.base_url, api_key="none")  # the server asks for no key; the SDK insists on one
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        max_tokens=64,
        stream=True,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": data_url(given.picture)}},
                    {"type": "text", "text": given.question},
                ],
            }
        ],
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
