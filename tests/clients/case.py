"""What every client's script shares: its arguments, what is sent, and how a part that fails is told.

`python -m tests.clients.with_openai URL MODEL` in the client's environment; each part prints a line. What the embedded
model says in words is asked for where it was taught so; of structured answers and tool calls the form counts.
"""

import base64
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_MEDIA = Path(__file__).resolve().parents[2] / "examples" / "media"
PICTURE, BEEPS = (_MEDIA / "red-circle.png").read_bytes(), (_MEDIA / "three-beeps.wav").read_bytes()
PICTURE_URL = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
QUESTION, AGAIN = "What is in this picture?", "What colour is it?"  # the second one of a second turn
TOKENS = 256  # room for a call by a small vocabulary, where a word takes many
URL, MODEL = sys.argv[1:3] if len(sys.argv) > 2 else ("", "")
KEY = "none"  # the server asks for none; clients insist on one


class Shape(BaseModel):
    """What is seen. Every field ends by itself, and there are no others, whatever a small model would like to write."""

    model_config = ConfigDict(extra="forbid")
    form: Literal["circle", "square", "triangle"]
    colour: Literal["red", "green", "blue"]
    count: int = Field(ge=0, le=9)


def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"It is sunny in {city}."


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Part:
    """One part of a script: what it raises is printed, and the next part runs."""

    def __init__(self, name: str) -> None:
        self.failed = False
        self._name = name

    def __enter__(self) -> "Part":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.failed = error is not None
        if error is not None:
            traceback.print_exception(error)
        print(f"{self._name}: {'FAILED' if self.failed else 'works'}", flush=True)
        return isinstance(error, Exception) or error is None


def run(*functions: Callable[[], None]) -> None:
    """Each part by its function's name; exit code 1 where one failed."""
    failed = 0
    for function in functions:
        with Part(function.__name__) as part:
            function()
        failed += part.failed
    sys.exit(1 if failed else 0)


def seen(text: str | None) -> None:
    """The embedded model's answer to QUESTION about PICTURE."""
    assert text and "red" in text.lower(), text
