"""The tool that the demo model learns to call: its forms, what each can say, and when it is called."""

import json

import numpy as np
import pytest

from demo.pictures import draw_scene
from demo.tasks import Asker
from demo.tooling import NAME, asked_with, declare, said_call, system_text
from demo.words import Words

pytestmark = pytest.mark.slow

WORDS = Words.load()


def test_forms_are_schemas_that_their_calls_fit() -> None:
    rng = np.random.default_rng(0)
    forms = [declare(rng) for _ in range(80)]
    assert len({json.dumps(form.tool) for form in forms}) > 60
    for form in forms:
        parameters = form.tool["function"]["parameters"]
        for shape, colour in (("star", None), ("star", "red"), (None, "red")):
            arguments = form.arguments(shape, colour)
            needed = parameters.get("required", [])
            sayable = (colour is None or form.colour is not None) and (shape is not None or not needed)
            assert (arguments is not None) == sayable
            if arguments is not None:
                assert set(needed) <= set(arguments) <= set(parameters["properties"])
                for name, value in arguments.items():
                    assert value in parameters["properties"][name].get("enum", [value])
                assert sorted(arguments.values()) == sorted(word for word in (shape, colour) if word)
                assert list(arguments) == [name for name in parameters["properties"] if name in arguments]


def test_descriptions_are_held_out() -> None:
    rng = np.random.default_rng(1)
    trained, held = (
        {declare(rng, held_out=out).tool["function"].get("description") for _ in range(100)} for out in (False, True)
    )
    assert len(trained) > 5 and len(held) == 2 and not trained & held


def test_a_call_is_what_the_template_writes() -> None:
    text = said_call({"shape": "ring", "colour": "red"})
    first, body, last = text.split("\n")
    assert (first, last) == ("<tool_call>", "</tool_call>")
    assert json.loads(body) == {"name": NAME, "arguments": {"shape": "ring", "colour": "red"}}
    tool = declare(np.random.default_rng(2)).tool
    assert json.loads(system_text([tool]).split("\n")[2]) == tool


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_tool_is_called_for_counting_one_kind_and_for_nothing_else(language: str) -> None:
    rng = np.random.default_rng(3)
    called = 0
    for number in range(120):
        picture = draw_scene(rng, (120, 90), 1 + number % 5)
        form = declare(rng)
        asker = Asker(rng=rng, words=WORDS, language=language)  # type: ignore[arg-type]
        first, *then = asked_with(asker, form, picture)
        assert (first.call is not None) == (first.task == "tool_call") == bool(then)
        assert ("<tool_call>" in first.answer) == bool(then)
        if first.call is not None:
            called += 1
            wanted = {form.shape: "shape", form.colour: "colour"}
            count = sum(
                all(getattr(thing, wanted[name]) == value for name, value in first.call.items())
                for thing in picture.things
            )
            assert then[0].answer == str(count) and f"\n{count}\n" in then[0].question
    assert 30 < called < 90
