"""The boxes that stand beside an answer, and on request the picture with them drawn."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tokenization.chat.boxes import Box, find_boxes
from tokenization.chat.parts import Media, Prompt
from tokenization.messages import Draw, Drawn, Prepared, PrepareFailed

Grounding = Literal["none", "boxes", "drawn"]  # what a request wants to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounded:
    """The regions of one answer; `drawn` is None where nobody asked for a picture."""

    boxes: tuple[Box, ...]
    drawn: Drawn | None = None

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"boxes": [msgspec.to_builtins(box) for box in self.boxes]}
        if self.drawn is not None:
            body |= {"drawn": self.drawn.picture or None, "notes": list(self.drawn.notes)}
        return body


def boxes_of(text: str, chat: Prompt, prepared: Prepared) -> tuple[Box, ...]:
    """The boxes in an answer's text, on the latest picture. Pictures are counted from the first one of `chat`.

    Pictures that the model's window dropped are the oldest; `prepared` does not hold them. Videos and sounds are not
    pointed at.
    """
    sizes = [item.size or (0, 0) for item in prepared.media if item.kind == "image"]
    dropped = len(_pictures(chat)) - len(sizes)
    return find_boxes(text, [(0, 0)] * dropped + sizes) if sizes else ()


def drawing_of(request_id: str, chat: Prompt, boxes: tuple[Box, ...]) -> Draw:
    """The worker's job: all boxes lie on one picture."""
    return Draw(request_id=request_id, media=_pictures(chat)[boxes[0].picture], boxes=boxes)


def _pictures(chat: Prompt) -> list[Media]:
    return [medium for medium in chat.media if medium.kind == "image"]


def not_drawn(request_id: str, answer: object) -> Drawn:
    """What stands in the place of a picture that could not be drawn. `answer` is the worker's, None if it died."""
    bad = isinstance(answer, PrepareFailed) and answer.kind == "bad_request"
    why = f": {answer.message}" if isinstance(answer, PrepareFailed) and bad else ""
    return Drawn(request_id=request_id, picture="", notes=(f"the picture could not be drawn{why}",))
