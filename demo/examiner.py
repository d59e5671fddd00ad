"""Puts an examination to a running server over HTTP and marks the answers."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from demo.exam import Item, Row, Turn
from demo.exam_media import Part
from demo.scoring import overlap, same
from demo.words import Words

_LONGEST = 64  # tokens of an answer
_ENOUGH = 0.5  # IoU of a box that counts as found


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """One item and what was said; `said` and `question` are those of the last turn that was asked."""

    item: Item
    right: bool
    question: str
    wanted: str
    said: str
    iou: float | None = None  # where a box was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row of the card."""

    row: Row
    marked: tuple[Marked, ...]

    @property
    def right(self) -> int:
        """How many items."""
        return sum(one.right for one in self.marked)

    @property
    def asked(self) -> int:
        """How many items."""
        return len(self.marked)

    @property
    def mean_iou(self) -> float | None:
        """Over all items, 0 where the answer held no box; None for rows without boxes."""
        found = [one.iou for one in self.marked if one.iou is not None]
        return sum(found) / len(found) if found else None


class Examiner:
    """Asks one server, a few items at a time."""

    def __init__(self, url: str, *, at_once: int = 4, swapped: bool = False) -> None:
        """`swapped`: each item is sent with the media of the next one, to see that the media matter."""
        self._http = httpx.Client(base_url=url, timeout=120)
        self._at_once = at_once
        self._swapped = swapped
        self._words = Words.load()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def examine(self, row: Row, count: int, seed: int) -> Result:
        """Items 0 to `count` - 1 of a row."""
        with ThreadPoolExecutor(self._at_once) as pool:
            marked = tuple(pool.map(partial(self._one, row, seed), range(count)))
        return Result(row=row, marked=marked)

    def served(self) -> dict[str, Any]:
        """What the server says that it serves. Raises httpx.HTTPError where there is none."""
        found: dict[str, Any] = self._http.get("/v1/models").raise_for_status().json()["data"][0]
        return found

    def _one(self, row: Row, seed: int, index: int) -> Marked:
        item = row.item(self._words, seed, index)
        if self._swapped:
            item = with_media_of(item, row.item(self._words, seed, index + 1))
        return self.ask(item)

    def ask(self, item: Item) -> Marked:
        """Turn after turn, with the model's own answers as history, to the first wrong one."""
        history: list[dict[str, Any]] = []
        for turn in item.turns[:-1]:
            marked = self._turn(item, turn, history)
            if not marked.right:
                return marked
            history.append({"inputs": list(turn.parts), "text": marked.said})
        return self._turn(item, item.turns[-1], history)

    def _turn(self, item: Item, turn: Turn, history: Sequence[dict[str, Any]]) -> Marked:
        body = {"inputs": list(turn.parts), "history": list(history), "parameters": {"max_tokens": _LONGEST}}
        if turn.tool is not None:
            body["tools"] = [dict(turn.tool)]
        answer = self._http.post("/chat", json=body)
        if answer.status_code != 200:  # wrong, and seen among the wrong ones
            said, right, iou = f"HTTP {answer.status_code}: {answer.text}", False, None if turn.box is None else 0.0
        elif turn.box is None:
            said, iou = said_by(answer.json()), None
            called = bool(answer.json().get("tool_calls"))
            right = called == turn.calls and same(said, turn.answer)
        else:
            said, iou = answer.json()["text"], iou_of(answer.json().get("boxes", []), turn.box)
            right = iou >= _ENOUGH
        return Marked(item=item, right=right, question=turn.question, wanted=turn.answer, said=said, iou=iou)


def said_by(answer: Mapping[str, Any]) -> str:
    """The text of an answer; where it calls tools, the arguments of the calls, one to a line."""
    calls = answer.get("tool_calls") or ()
    return "\n".join(str(call["function"]["arguments"]) for call in calls) or str(answer["text"])


def iou_of(boxes: Sequence[dict[str, Any]], wanted: Sequence[float]) -> float:
    """Of an answer's one box, `points` in pixels, with the true one; 0 for none and for several."""
    if len(boxes) != 1 or boxes[0]["kind"] != "box":
        return 0.0
    (x1, y1), (x2, y2) = boxes[0]["points"]
    return overlap((x1, y1, x2, y2), wanted)


def with_media_of(item: Item, other: Item) -> Item:
    """The questions and right answers of one item with the media of another of the same row, place by place."""
    media = [part for turn in other.turns for part in turn.parts if "text" not in part]
    turns = []
    for turn in item.turns:
        parts: list[Part] = []
        for part in turn.parts:
            kind = next(iter(part))
            swap = next((one for one in media if kind in one), None) if kind != "text" else None
            if swap is not None:
                media.remove(swap)
            parts.append(swap or part)
        turns.append(Turn(parts=tuple(parts), question=turn.question, answer=turn.answer, box=turn.box))
    return Item(row=item.row, turns=tuple(turns))
