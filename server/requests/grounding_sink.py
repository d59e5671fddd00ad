"""Puts boxes beside each finished answer, and on request the picture with them drawn: around another sink."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from server.requests.answer import Delta, Sink
from server.requests.answer_boxes import Grounded, boxes_of
from server.requests.request import ChatRequest
from tokenization.chat.grounding import Box
from tokenization.messages import Drawn, Prepared

DrawBoxes = Callable[[tuple[Box, ...]], Awaitable[Drawn]]


class GroundingSink:
    """For one request of a model whose answers point at pictures. `draw` is called once for each answer with boxes."""

    def __init__(self, sink: Sink, request: ChatRequest, prepared: Prepared, draw: DrawBoxes) -> None:
        self._sink = sink
        self._request = request
        self._prepared = prepared
        self._draw = draw
        self._texts: dict[int, list[str]] = {}  # by answer: what was shown

    async def accept(self, prepared: Prepared) -> None:
        await self._sink.accept(prepared)

    async def write(self, delta: Delta) -> None:
        texts = self._texts.setdefault(delta.index, [])
        texts.append(delta.text)
        if delta.finish is not None:
            delta = replace(delta, grounded=await self._ground("".join(texts)))
        await self._sink.write(delta)

    async def _ground(self, text: str) -> Grounded:
        boxes = boxes_of(text, self._request.chat, self._prepared)
        if self._request.grounding != "drawn":
            return Grounded(boxes=boxes)
        nothing = Drawn(request_id=self._request.id, picture="", notes=())
        return Grounded(boxes=boxes, drawn=await self._draw(boxes) if boxes else nothing)
