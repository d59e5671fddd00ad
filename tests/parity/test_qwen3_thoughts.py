"""Earlier thoughts of Qwen3-VL's Thinking models in a prompt: ids equal to those of transformers, by their template."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from configs.checkpoint import Checkpoint
from model.families.qwen3_vl.processor import Qwen3VLProcessor
from tests.layouts.templates import QWEN3_VL_THINKING
from tests.parity.theirs import transformers
from tests.tiny.qwen3_vl import write_qwen3_vl
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.rendering import with_rendering
from tokenization.text.thoughts import opens_thought, thought_marks

pytestmark = pytest.mark.network

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
WORDS = ("It is dry.", "Two\nlines", "\n\nlate", "naïve 好")
THOUGHTS = ("hm", "one\n\ntwo\n", "\nfirst", "好 ?")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The marks are added tokens that are not special, as in the published files."""
    found = write_qwen3_vl(tmp_path_factory.mktemp("tiny") / "thinks")
    tokenizer = Tokenizer.from_file(str(found / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in ("<think>", "</think>")])
    tokenizer.save(str(found / "tokenizer.json"))
    (found / "chat_template.json").write_text(json.dumps({"chat_template": QWEN3_VL_THINKING}))
    return found


def messages_of(rng: random.Random) -> list[dict[str, Any]]:
    """Questions, tool rounds and answers, whose thoughts stand beside the words, among them, or nowhere."""
    found: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        found.append({"role": "user", "content": "How is it?"})
        for _ in range(rng.randrange(0, 3)):
            found += [_answer(rng) | {"tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "dry"}]
        if rng.random() < 0.6:
            found.append(_answer(rng))
    return found


def _answer(rng: random.Random) -> dict[str, Any]:
    words, thoughts = rng.choice(WORDS), rng.choice(THOUGHTS)
    kind = rng.randrange(4)
    if kind == 0:
        return {"role": "assistant", "content": f"<think>\n{thoughts.strip()}\n</think>\n\n{words.strip()}"}
    if kind == 1:
        return {"role": "assistant", "content": words}
    return {"role": "assistant", "content": words, "reasoning_content": thoughts}


def test_histories_become_the_ids_of_transformers(path: Path) -> None:
    """In both names of the field, and among the words."""
    host, theirs = Qwen3VLProcessor(Checkpoint(path), 1 << 30), transformers.AutoTokenizer.from_pretrained(str(path))
    rng, shown = random.Random(7), 0
    marks = thought_marks(host.thought_form, host.tokenizer)
    assert marks is not None
    for _ in range(80):
        messages = messages_of(rng)
        expected = theirs.apply_chat_template(
            messages, chat_template=QWEN3_VL_THINKING, tools=[TOOL], add_generation_prompt=True, tokenize=False
        )
        ids = theirs(expected, add_special_tokens=False)["input_ids"]
        newer = [
            {("reasoning" if key == "reasoning_content" else key): value for key, value in message.items()}
            for message in messages
        ]
        for asked in (messages, newer):
            chat, _ = with_tools(with_rendering(chat_from_openai(asked), {}), {"tools": [TOOL]})
            assert host.render(chat) == ids, messages
        assert opens_thought(ids, marks, host.tokenizer)
        shown += ids.count(marks.closing)
    assert shown > 20


def test_a_last_answer_shows_its_thought_and_opens_none(path: Path) -> None:
    host, theirs = Qwen3VLProcessor(Checkpoint(path), 1 << 30), transformers.AutoTokenizer.from_pretrained(str(path))
    marks = thought_marks(host.thought_form, host.tokenizer)
    assert marks is not None
    for answer in ({"reasoning_content": "hm"}, {}, {"content": "<think>\nhm\n</think>\n\nIt is"}):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is", **answer}]
        chat = with_rendering(chat_from_openai(messages), {"continue_final_message": True})
        apart = {"role": "assistant", "content": "It is", "reasoning_content": "hm"}
        text = theirs.apply_chat_template(
            [messages[0], apart if answer else messages[1]], chat_template=QWEN3_VL_THINKING,
            continue_final_message=True, tokenize=False,
        )  # fmt: skip
        ids = host.render(chat)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert marks.closing in ids and not opens_thought(ids, marks, host.tokenizer)
