"""A picture described in a form, three ways, through the OpenAI SDK: python examples/structured.py [PICTURE]."""

import argparse
import base64
from pathlib import Path
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field

CIRCLE = Path(__file__).resolve().parent / "media" / "red-circle.png"


class Shape(BaseModel):
    """One thing that was drawn."""

    colour: Literal["red", "green", "blue", "yellow"]
    shape: Literal["circle", "square", "triangle"]


class Drawing(BaseModel):
    """What is to be said of a picture."""

    # A list without max_length may go on until max_tokens, and parse() raises LengthFinishReasonError of what is cut.
    shapes: list[Shape] = Field(max_length=2)


def main() -> None:
    """Ask for an object by its schema, for one of some words, and for a text by a pattern."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path, default=CIRCLE)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    given = parser.parse_args()

    client = OpenAI(base_url=given.base_url, api_key="none")  # the server asks for no key; the SDK insists on one
    model = client.models.list().data[0].id
    picture = f"data:image/png;base64,{base64.b64encode(given.picture.read_bytes()).decode('ascii')}"

    # The SDK sends the class as a JSON schema with strict, and makes an object of it from the answer.
    parsed = client.chat.completions.parse(
        model=model,
        max_tokens=256,
        response_format=Drawing,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": picture}},
                    {"type": "text", "text": "What is in this picture?"},
                ],
            }
        ],
    )
    print(parsed.choices[0].message.parsed)

    # What OpenAI has no field for goes as in vLLM.
    for form in ({"choice": ["red circle", "blue square"]}, {"regex": "[a-z]+ (circle|square)"}):
        answer = client.chat.completions.create(
            model=model,
            max_tokens=64,
            extra_body={"structured_outputs": form},
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": picture}},
                        {"type": "text", "text": "What is in this picture?"},
                    ],
                }
            ],
        )
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
