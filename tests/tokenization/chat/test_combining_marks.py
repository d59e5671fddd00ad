"""Combining marks: every script and ordinary play passes, a run that a normaliser sorts for seconds does not."""

import sys
import time
import unicodedata

import pytest

from tests.tables import each_of
from tests.tokenization.chat.test_dialects import text as part
from tokenization.chat.blocks import chat_from_blocks
from tokenization.chat.combining_marks import LONGEST_RUN, refuse_long_runs
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError

HONEST = {
    "vietnamese": unicodedata.normalize("NFD", "Tiếng Việt rất đẹp, ữ ệ ộ. "),
    "devanagari": "क्षत्रिय नमस्ते दुनिया श्री ",
    "hebrew with points": "בְּרֵאשִׁית בָּרָא אֱלֹהִים ",
    "arabic with points": "بِسْمِ اللَّهِ الرَّحْمَٰنِ الرَّحِيمِ ",
    "thai": "ที่นี่น้ำ ",
    "tibetan": "བོད་ཡིག་ཧཱུྃ ",
    "hangul in letters": unicodedata.normalize("NFD", "한국어 문장 "),
    "emoji": "👩‍👩‍👧‍👦 👍🏽 ❤️ 🏳️‍🌈 1️⃣ ",
    "chinese": "你好，世界。",
}
ZALGO = "".join(chr(0x300 + i % 0x40) for i in range(LONGEST_RUN))


@each_of("script", HONEST)
def test_scripts_pass(script: str) -> None:
    for form in ("NFC", "NFD"):
        refuse_long_runs(unicodedata.normalize(form, HONEST[script] * 400), "here")


def test_the_stated_length_is_exact_wherever_the_run_stands() -> None:
    for before in (0, 1, 100, LONGEST_RUN, LONGEST_RUN + 1, 3000, 65_436, 65_535, 131_072):
        for after in (0, 1, 700):
            refuse_long_runs("a" * before + "é" + ZALGO + "a" * after)
            told = f"more than {LONGEST_RUN} combining marks in a row, at character {before + 1}:"
            with pytest.raises(ChatError, match=told) as caught:
                refuse_long_runs("a" * before + "é" + ZALGO + "\u0301" + "a" * after, "inputs[0].text")
            assert caught.value.param == "inputs[0].text"
    refuse_long_runs((ZALGO + "a") * 200)


@each_of("marks", ["\u0301\u0327", "\u0344", "\u0f73", "\u0f71\u0f72\u0f74", "\U0001d165\u0301"])
def test_a_mark_is_what_is_sorted_also_when_it_is_composed(marks: str) -> None:
    """What costs the normaliser time is refused; the same number of letters with a mark each is not."""
    with pytest.raises(ChatError, match="combining marks"):
        refuse_long_runs("a" + marks * (LONGEST_RUN + 1))
    refuse_long_runs("é\u0327" * LONGEST_RUN)


def test_a_long_text_costs_little_to_look_at() -> None:
    """4 million characters of the costliest honest text: linear, while sorting one run of them takes hours."""
    text = "ab" + (ZALGO[:-1] + "\u0344a") * (4_000_000 // (LONGEST_RUN + 1))
    refuse_long_runs("é")  # the table of marks is made once
    begun = time.process_time()
    refuse_long_runs(text)
    refuse_long_runs(HONEST["chinese"] * 500_000)
    assert time.process_time() - begun < 2, "it took 0.2 s; looking at mark after mark takes 6"


def test_no_mark_is_left_out_of_the_table() -> None:
    """A further Unicode with marks in further planes shows here."""
    beyond = [point for point in range(0x20000, sys.maxunicode + 1) if unicodedata.combining(chr(point))]
    before = [point for point in range(0x300) if unicodedata.combining(unicodedata.normalize("NFD", chr(point))[0])]
    assert beyond == before == []


def test_both_dialects_name_the_field() -> None:
    long = "a" + "\u0301\u0327" * LONGEST_RUN
    for body, param in (
        ([{"text": "x"}, {"text": long}], "inputs[1].text"),
        ([{"box": [[1, 2, 3, 4]], "ref": long}], "inputs[0].ref"),
        ({"history": [{"inputs": [{"text": "x"}], "text": long}], "inputs": [{"text": "x"}]}, "history[0].text"),
    ):
        with pytest.raises(ChatError) as caught:
            chat_from_native(body)
        assert caught.value.param == param
    for message, param in (
        ({"role": "user", "content": long}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": long}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "name": long}, "messages[0].name"),
    ):
        with pytest.raises(ChatError) as caught:
            chat_from_openai([message])
        assert caught.value.param == param
    assert chat_from_native([{"text": "a" + ZALGO}]).turns[0].parts == (part("a" + ZALGO),)


def test_blocks_of_a_thought_are_one_text() -> None:
    marks = [{"type": "thinking", "thinking": "\u0301" * LONGEST_RUN, "signature": ""}] * 2
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": marks}, {"role": "user", "content": "b"}]
    with pytest.raises(ChatError, match="combining marks"):
        chat_from_blocks(said, None)
