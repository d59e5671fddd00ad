"""LlamaIndex: OpenAILike as a chat model, structured answers in both of its ways, and tools."""

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE, QUESTION, TOKENS, URL, Shape, run, seen, weather

ASKED: Any = [ChatMessage(role="user", blocks=[ImageBlock(image=PICTURE), TextBlock(text=QUESTION)])]


def model(**more: Any) -> Any:
    return OpenAILike(
        model=MODEL, api_base=f"{URL}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True,
        max_tokens=TOKENS, temperature=0, max_retries=0, **more,
    )  # fmt: skip


def chat() -> None:
    seen(model().chat(ASKED).message.content)


def stream() -> None:
    pieces = [piece.delta or "" for piece in model().stream_chat(ASKED)]
    seen("".join(pieces))


def turns() -> None:
    again = ChatMessage(role="user", content=AGAIN)
    seen(model().chat([*ASKED, model().chat(ASKED).message, again]).message.content)


def structured() -> None:
    for by_schema in (True, False):  # False: by a tool that must be called
        found = model(should_use_structured_outputs=by_schema).as_structured_llm(Shape).chat(ASKED).raw
        assert isinstance(found, Shape), (by_schema, found)


def tools() -> None:
    llm, ours = model(), FunctionTool.from_defaults(fn=weather)
    asked = ChatMessage(role="user", content="What is the weather in Paris?")
    first = llm.chat_with_tools([ours], user_msg=asked, tool_required=True)
    [call] = llm.get_tool_calls_from_response(first)
    said = ours.call(**call.tool_kwargs).content
    result = ChatMessage(role="tool", content=said, additional_kwargs={"tool_call_id": call.tool_id})
    last = llm.chat_with_tools([ours], chat_history=[asked, first.message, result], tool_choice="none")
    assert last.message.content, last


if __name__ == "__main__":
    run(chat, stream, turns, structured, tools)
