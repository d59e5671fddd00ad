"""A tool that a model must call, and its result handed back: python examples/tools.py [QUESTION]."""

import argparse
import json

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

PAINT: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "paints a wall",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"type": "string", "enum": ["red", "green", "blue"]},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["colour", "coats"],
        },
    },
}


def paint(colour: str, coats: int) -> str:
    """What the program does, and tells the model of it."""
    return f"The wall has {coats} coats of {colour} now."


def main() -> None:
    """Ask for a call, make it, hand back what it gave, and print the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Paint the wall red.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    given = parser.parse_args()

    client = OpenAI(base_url=given.base_url, api_key="none")  # the server asks for no key; the SDK insists on one
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": given.question}]
    asked = client.chat.completions.create(
        model=model, messages=messages, tools=[PAINT], tool_choice="required", parallel_tool_calls=False, max_tokens=256
    )
    calls = asked.choices[0].message.tool_calls or []
    messages.append({"role": "assistant", "tool_calls": [call.to_dict() for call in calls]})  # type: ignore[misc]
    for call in calls:
        if call.type != "function":
            continue
        result = paint(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}): {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=model, messages=messages, tools=[PAINT], max_tokens=64)
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
