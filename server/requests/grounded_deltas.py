"""Puts boxes beside each finished answer, and on request the picture with them drawn: on the way of its deltas."""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from server.requests.answer import Delta, Emit
from server.requests.answer_boxes import Grounded, boxes_of
from server.requests.request import ChatRequest
from tokenization.chat.grounding import Box
from tokenization.messages import Drawn, Prepared

DrawBoxes = Callable[[tuple[Box, ...]], Awaitable[Drawn]]


def with_boxes(emit: Emit, request: ChatRequest, draw: DrawBoxes) -> Emit:
    """For one request of a model whose answers point at pictures. `draw` is called once for each answer with boxes."""
    texts: dict[int, list[str]] = {}  # by answer: what was shown

    async def ground(prepared: Prepared, text: str) -> Grounded:
        boxes = boxes_of(text, request.chat, prepared)
        if request.grounding != "drawn":
            return Grounded(boxes=boxes)
        nothing = Drawn(request_id=request.id, picture="", notes=())
        return Grounded(boxes=boxes, drawn=await draw(boxes) if boxes else nothing)

    async def write(prepared: Prepared, delta: Delta) -> None:
        shown = texts.setdefault(delta.index, [])
        shown.append(delta.text)
        if delta.finish is not None:
            delta = replace(delta, grounded=await ground(prepared, "".join(shown)))
        await emit(prepared, delta)

    return write
