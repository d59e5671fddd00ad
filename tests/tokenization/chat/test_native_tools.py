"""Calls of tools and their results in native histories: the same chat as in messages, and read as strictly."""

from typing import Any

import msgspec
import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError


def after_call(call: Any) -> dict[str, Any]:
    return {"inputs": [{"text": "a"}], "history": [{"inputs": [{"text": "a"}], "tool_calls": [call]}]}


def test_a_native_history_of_tools_is_that_of_messages() -> None:
    """Calls stand where /chat told them, results in the place of the inputs, or before them."""

    def calls(*names: str) -> list[dict[str, Any]]:
        return [
            {"index": i, "id": f"c{name}", "type": "function", "function": {"name": name, "arguments": '{"a": [1]}'}}
            for i, name in enumerate(names)
        ]

    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    native = chat_from_native(
        {
            "history": [
                {"inputs": [{"text": "How is it?"}], "text": "", "tool_calls": calls("f", "g")},
                {
                    "tool_results": [
                        {"tool_call_id": "cf", "inputs": [{"text": "dry"}, {"text": "warm"}]},
                        {"tool_call_id": "cg", "inputs": [{"image": "a.png"}, {"text": "as seen"}]},
                    ],
                    "text": "Once more.",
                    "tool_calls": calls("h"),
                },
                {"tool_results": [{"inputs": [{"text": "wet"}]}], "inputs": [{"text": "So?"}], "text": "Well."},
                {"inputs": [{"text": "Again"}], "tool_calls": calls("f")},
            ],
            "tool_results": [{"tool_call_id": "cf", "inputs": [{"image": "b.png"}]}],
        }
    )
    openai = chat_from_openai(
        [
            {"role": "user", "content": [{"type": "text", "text": "How is it?"}]},
            {"role": "assistant", "content": None, "tool_calls": calls("f", "g")},
            {"role": "tool", "tool_call_id": "cf", "content": "dry\nwarm"},
            {"role": "tool", "tool_call_id": "cg", "content": [image("a.png"), {"type": "text", "text": "as seen"}]},
            {"role": "assistant", "content": "Once more.", "tool_calls": calls("h")},
            {"role": "tool", "content": "wet"},
            {"role": "user", "content": [{"type": "text", "text": "So?"}]},
            {"role": "assistant", "content": "Well."},
            {"role": "user", "content": [{"type": "text", "text": "Again"}]},
            {"role": "assistant", "tool_calls": calls("f")},
            {"role": "tool", "tool_call_id": "cf", "content": [image("b.png")]},
        ]
    )
    assert without_params(native.turns) == without_params(openai.turns)
    assert [media.param for media in native.media] == [
        "history[1].tool_results[1].inputs[0].image", "tool_results[0].inputs[0].image",
    ]  # fmt: skip


def without_params(value: Any) -> Any:
    """As plain data, without the fields that it came from."""
    if isinstance(value, dict):
        return {key: without_params(one) for key, one in value.items() if key != "param"}
    if isinstance(value, list | tuple):
        return [without_params(one) for one in value]
    return value if isinstance(value, str | int | None) else without_params(msgspec.to_builtins(value))


@each_of(
    ("body", "param"),
    [
        ({"inputs": [{"text": "a"}], "history": [{"inputs": [{"text": "a"}], "tool_calls": []}]}, "history[0].text"),
        (after_call({"function": {}}), "history[0].tool_calls[0].function.name"),
        (after_call({"function": {"name": "f", "arguments": []}}), "history[0].tool_calls[0].function.arguments"),
        ({"tool_results": []}, "inputs"),
        ({"tool_results": {}}, "tool_results"),
        ({"tool_results": ["dry"]}, "tool_results[0]"),
        ({"tool_results": [{"tool_call_id": "c"}]}, "tool_results[0].inputs"),
        ({"tool_results": [{"tool_call_id": 3, "inputs": [{"text": "a"}]}]}, "tool_results[0].tool_call_id"),
        ({"tool_results": [{"id": "c", "inputs": [{"text": "a"}]}]}, "tool_results[0].id"),
        ({"tool_results": [{"inputs": [{"image": ""}]}]}, "tool_results[0].inputs[0].image"),
    ],
)
def test_what_is_wrong_is_named(body: Any, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_from_native(body)
    assert caught.value.param == param
