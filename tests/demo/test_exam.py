"""The examination of the demo model: items are right, the same every time, held out, and marked as a person would."""

import base64
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import av
import httpx
import pytest
from PIL import Image

from demo import sabotage
from demo.exam import ROWS, Item, Row, Turn, chosen_rows
from demo.exam_media import Part
from demo.examiner import Examiner, Marked, iou_of, with_media_of
from demo.scoring import overlap, plain, same, wilson
from demo.words import Words
from tests.tables import each_of

pytestmark = pytest.mark.slow

Drawn = Callable[[Row, int, int], Item]
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def words() -> Words:
    return Words.load()


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


def content(part: Part) -> bytes:
    return base64.b64decode(next(iter(part.values())).partition(",")[2])


def facts(item: Item) -> list[tuple[object, ...]]:
    """All but the bytes of clips and sounds: WebM and Ogg carry random numbers, and x264 is not always alike."""
    exact = ("text", "image")
    return [
        (
            turn.question,
            turn.answer,
            turn.box,
            [(kind, part[kind] if kind in exact else "") for part in turn.parts for kind in part],
        )
        for turn in item.turns
    ]


@pytest.fixture(scope="module")
def drawn(words: Words) -> Drawn:
    """The item of a row by its seed and index, made once for the tests that look at it."""
    return cache(lambda row, seed, index: row.item(words, seed, index))


@cache
def examiner() -> Examiner:
    """One for all answers: its client reads the machine's certificates, which takes a quarter of a second."""
    return Examiner("http://server")


def asking(answer: Callable[[httpx.Request], httpx.Response]) -> Examiner:
    """The examiner of a server that answers so."""
    examiner()._http = httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer), verify=False)
    return examiner()


def marked(right: bool, iou: float | None = None) -> Marked:
    item = Item(row="count", turns=(Turn(parts=({"text": "?"},), question="?", answer="2"),))
    return Marked(item=item, right=right, question="?", wanted="2", said="3", iou=iou)


# ---- scoring


@each_of(
    ("said", "right"),
    [
        ('{"colour":"red", "shape": "star"}', '{"shape": "star", "colour": "red"}'),
        (" Red circle. ", "red circle"),
        ("three", "3"),
        ("Three.", "3"),
        ("三", "3"),
        ("我不知道", "我不知道。"),
    ],
)
def test_answers_that_say_the_same_are_right(said: str, right: str) -> None:
    assert same(said, right)


@each_of(
    ("said", "right"),
    [
        ("red circle, blue star", "red circle"),
        ("4", "3"),
        ("", "left"),
        ("13", "3"),
        ("red", "green"),
        ('{"shape": "star"', '{"shape": "star"}'),
        ('{"shape": "Star"}', '{"shape": "star"}'),
        ("[1]", '{"a": 1}'),
    ],
)
def test_other_answers_are_wrong(said: str, right: str) -> None:
    assert not same(said, right)


def test_only_one_full_stop_is_dropped() -> None:
    assert plain("Yes, a few.") == "yes, a few"
    assert plain("no..") == "no."


def test_overlap_of_boxes() -> None:
    assert overlap((0, 0, 10, 10), (0, 0, 10, 10)) == 1
    assert overlap((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 10, 10), (10, 0, 20, 10)) == overlap((5, 5, 5, 5), (0, 0, 10, 10)) == 0


def test_a_box_is_right_alone_and_in_pixels() -> None:
    box = {"ref": "star", "kind": "box", "points": [[20, 20], [140, 80]], "picture": 0}
    assert iou_of([box], (20, 20, 140, 80)) == 1
    assert iou_of([box, box], (20, 20, 140, 80)) == iou_of([], (20, 20, 140, 80)) == 0


def test_wilson_interval_is_the_published_one() -> None:
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    with pytest.raises(ValueError, match="question"):
        wilson(0, 0)


# ---- items


@each_of("one", ROWS, ids=lambda one: one.name)
def test_items_are_well_formed(one: Row, words: Words, drawn: Drawn) -> None:
    assert facts(drawn(one, 5, 0)) == facts(one.item(words, 5, 0))
    for item in (drawn(one, 5, 0), drawn(one, 5, 1)):
        assert item.row == one.name
        for turn in item.turns:
            assert [part["text"] for part in turn.parts if "text" in part] == [turn.question]
            assert turn.question.strip() and turn.answer
            assert (turn.box is not None) == one.name.startswith("where")
            assert any("一" <= letter <= "鿿" for letter in turn.question + turn.answer) == (one.language == "zh")


@each_of("one", ROWS, ids=lambda one: one.name)
def test_another_seed_asks_other_things(one: Row, drawn: Drawn) -> None:
    first, second = ([facts(drawn(one, seed, index)) for index in range(2)] for seed in (5, 6))
    assert first != second


def test_media_are_what_they_say(words: Words) -> None:
    for index in range(8):
        for turn in (*row("mixed").item(words, 1, index).turns, *row("where").item(words, 1, index).turns):
            for part in turn.parts:
                if "image" in part:
                    image = Image.open(io.BytesIO(content(part)))
                    assert part["image"].startswith(f"data:image/{str(image.format).lower()};")
                    if turn.box is not None:
                        x1, y1, x2, y2 = turn.box
                        assert 0 <= x1 < x2 <= image.width and 0 <= y1 < y2 <= image.height
                elif "text" not in part:
                    with av.open(io.BytesIO(content(part))) as file:
                        assert bool(file.streams.video) == ("video" in part) != bool(file.streams.audio)


def test_formats_and_beeps_go_round(words: Words) -> None:
    items = [row("beeps").item(words, 0, index) for index in range(32)]
    kinds = {
        (next(p for p in i.turns[0].parts if "audio" in p)["audio"].split(";")[0], i.turns[0].answer) for i in items
    }
    assert {answer for _, answer in kinds} == {"1", "2", "3", "4"}
    assert len(kinds) == 20  # five types of files, each with every count


def test_questions_are_held_out(words: Words) -> None:
    """With nothing but held-out templates every row can still be asked: no other one is ever used."""
    trained = {key: () for key in words.questions if not key[2]}
    only = Words(
        questions=type(words.questions)({**words.questions, **trained}),
        talk=type(words.talk)({key: value if key[1] else () for key, value in words.talk.items()}),
        outside=type(words.outside)({key: value if key[1] else () for key, value in words.outside.items()}),
        extras=words.extras,
    )
    for one in ROWS:
        assert facts(one.item(only, 2, 0)) == facts(one.item(words, 2, 0))


def test_swapped_media_belong_to_another_question(words: Words) -> None:
    for name in ("thing", "which_has", "mixed", "two_turns"):
        item, other = (row(name).item(words, 3, index) for index in (0, 1))
        swapped = with_media_of(item, other)
        assert [turn.answer for turn in swapped.turns] == [turn.answer for turn in item.turns]
        own, theirs, sent = (
            sorted(next(iter(p.values())) for turn in i.turns for p in turn.parts if "text" not in p)
            for i in (item, other, swapped)
        )
        assert sent == theirs != own


# ---- asking


def test_a_later_turn_carries_what_was_said() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"text": "Two." if len(bodies) == 1 else "no", "boxes": []})

    turns = (
        Turn(parts=({"image": "data:,"}, {"text": "how many?"}), question="how many?", answer="2"),
        Turn(parts=({"text": "a star?"},), question="a star?", answer="yes"),
    )
    found = asking(answer).ask(Item(row="two_turns", turns=turns))
    assert (found.right, found.said, found.question) == (False, "no", "a star?")
    assert bodies[0]["history"] == [] and bodies[1]["history"] == [{"inputs": list(turns[0].parts), "text": "Two."}]


def test_an_error_is_a_wrong_answer_that_is_seen() -> None:
    found = asking(lambda _: httpx.Response(400, text="no such thing")).ask(marked(True).item)
    assert not found.right and found.said == "HTTP 400: no such thing"


@each_of(
    ("name", "reply", "right"),
    [
        ("tool_called", {"text": "", "tool_calls": "wanted"}, True),
        ("tool_called", {"text": "wanted"}, False),
        ("tool_called", {"text": "", "tool_calls": [{"function": {"name": "count_shapes", "arguments": "{}"}}]}, False),
        ("tool_left", {"text": "wanted"}, True),
        ("tool_left", {"text": "wanted", "tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}, False),
    ],
)
def test_a_tool_is_to_be_called_when_and_only_when_it_fits(
    drawn: Drawn, name: str, reply: dict[str, object], right: bool
) -> None:
    item = drawn(row(name), 1, 0)
    (turn,) = item.turns
    call = {"function": {"name": "count_shapes", "arguments": turn.answer}}
    said = {key: turn.answer if value == "wanted" else value for key, value in reply.items()}
    if reply.get("tool_calls") == "wanted":
        said["tool_calls"] = [call]

    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["tools"] == [turn.tool]
        return httpx.Response(200, json=said)

    assert asking(answer).ask(item).right == right


def test_rows_are_chosen_by_name() -> None:
    assert [one.name for one in chosen_rows("beeps, count")] == ["count", "beeps"]
    assert chosen_rows("") == ROWS
    with pytest.raises(ValueError, match="no such row: cat"):
        chosen_rows("cat")


# ---- sabotage


@each_of("fault", sabotage.FAULTS, ids=lambda fault: fault.name)
def test_every_fault_still_fits_the_code(fault: sabotage.Fault, tmp_path: Path) -> None:
    if not fault.path:
        return
    broken = tmp_path / fault.path
    broken.parent.mkdir(parents=True)
    broken.write_text((REPO / fault.path).read_text(encoding="utf-8"), encoding="utf-8")
    fault.plant(tmp_path)
    text = broken.read_text(encoding="utf-8")
    assert text != (REPO / fault.path).read_text(encoding="utf-8")
    compile(text, fault.path, "exec")
    with pytest.raises(ValueError, match="not once"):
        fault.plant(tmp_path)  # the line is gone
