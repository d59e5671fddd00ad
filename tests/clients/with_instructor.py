"""instructor: its modes of asking for a model of pydantic, plain and as a stream of partial answers."""

from typing import Any

import instructor
from openai import OpenAI

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, Shape, run, seen

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PICTURE_URL}},
            {"type": "text", "text": QUESTION},
        ],
    }
]


def wrapped(mode: instructor.Mode) -> Any:
    return instructor.from_openai(CLIENT, mode=mode).chat.completions


def asked(mode: instructor.Mode) -> None:
    found = wrapped(mode).create(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0, max_retries=0, response_model=Shape
    )
    assert isinstance(found, Shape), (mode, found)


def chat() -> None:
    answer = wrapped(instructor.Mode.TOOLS).create(model=MODEL, messages=ASKED, max_tokens=TOKENS, response_model=None)
    seen(answer.choices[0].message.content)


def turns() -> None:
    """The second one asks for a form."""
    first = wrapped(instructor.Mode.TOOLS).create(model=MODEL, messages=ASKED, max_tokens=TOKENS, response_model=None)
    history = [*ASKED, {"role": "assistant", "content": first.choices[0].message.content}]
    found = wrapped(instructor.Mode.JSON_SCHEMA).create(
        model=MODEL, messages=[*history, {"role": "user", "content": AGAIN}], max_tokens=TOKENS, temperature=0,
        max_retries=0, response_model=Shape,
    )  # fmt: skip
    assert isinstance(found, Shape), found


def structured() -> None:
    asked(instructor.Mode.JSON_SCHEMA)


def tools() -> None:
    asked(instructor.Mode.TOOLS)
    asked(instructor.Mode.TOOLS_STRICT)


def stream() -> None:
    parts = list(
        wrapped(instructor.Mode.TOOLS).create_partial(
            model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0, max_retries=0, response_model=Shape
        )
    )
    assert parts and Shape(**parts[-1].model_dump())


if __name__ == "__main__":
    run(chat, turns, structured, tools, stream)
