"""LangChain: ChatOpenAI with a picture, a stream, `with_structured_output` in three ways and `bind_tools`."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, Shape, run, seen, weather

CHAT: Any = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_tokens=TOKENS, temperature=0, max_retries=0)
ASKED: Any = [
    HumanMessage([{"type": "image_url", "image_url": {"url": PICTURE_URL}}, {"type": "text", "text": QUESTION}])
]


def chat() -> None:
    seen(CHAT.invoke(ASKED).text)


def stream() -> None:
    pieces = [chunk.text for chunk in CHAT.stream(ASKED)]
    seen("".join(pieces))


def turns() -> None:
    seen(CHAT.invoke([*ASKED, CHAT.invoke(ASKED), HumanMessage(AGAIN)]).text)


def structured() -> None:
    for method, strict in (("json_schema", True), ("json_schema", None), ("function_calling", None)):
        found = CHAT.with_structured_output(Shape, method=method, strict=strict).invoke(ASKED)
        assert isinstance(found, Shape), (method, strict, found)


def tools() -> None:
    ours: Any = tool(weather)
    asked = [HumanMessage("What is the weather in Paris?")]
    for choice in ("required", "weather"):
        first = CHAT.bind_tools([ours], tool_choice=choice, parallel_tool_calls=False).invoke(asked)
        [call] = first.tool_calls
        result = ours.invoke(call)
        assert isinstance(result, ToolMessage) and "sunny" in result.text
        last = CHAT.bind_tools([ours], tool_choice="none").invoke([*asked, first, result])
        assert last.text and not last.tool_calls, last


if __name__ == "__main__":
    run(chat, stream, turns, structured, tools)
