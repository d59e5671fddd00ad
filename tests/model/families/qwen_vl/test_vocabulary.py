"""Ids of the original's tokenizer: the golden ones, what users may type, files that are broken."""

import base64
import json
import re
import time
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from configs.checkpoint import Checkpoint, CheckpointError
from model.families.qwen_vl.chatml import Tag, answer_pieces, encode_pieces
from model.families.qwen_vl.vocabulary import (
    IM_END,
    IM_START,
    IMG,
    LONGEST_BLANK,
    REF,
    SPECIAL,
    QwenVLTokenizer,
    read_ranks,
)
from tests.rights import forbidden
from tests.tables import each_of
from tokenization.chat.combining_marks import LONGEST_RUN
from tokenization.chat.errors import ChatError
from tokenization.text.bpe import BPETokenizer
from tokenization.text.detokenize import Detokenizer, whole_text

CHECKOUT = Path(__file__).resolve().parents[4]
GOLDEN = CHECKOUT / "tests" / "golden" / "qwen_vl_v1"
PUBLISHED = CHECKOUT.parent / "shared" / "data" / "qwen.tiktoken"
TINY = QwenVLTokenizer.from_checkpoint(Checkpoint(GOLDEN / "ckpt"))


@cache
def published() -> QwenVLTokenizer:
    return QwenVLTokenizer(read_ranks(PUBLISHED))


@pytest.fixture(scope="module", params=["tiny", "real"])
def case(request: pytest.FixtureRequest) -> tuple[QwenVLTokenizer, dict[str, Any]]:
    golden = json.loads((GOLDEN / f"tokenizer_{request.param}.json").read_text(encoding="utf-8"))
    if request.param == "tiny":
        return TINY, golden
    if not PUBLISHED.is_file():
        pytest.skip("the published vocabulary is not at ../shared/data/qwen.tiktoken beside the checkout")
    return published(), golden


def test_special_ids_follow_the_ranks(case: tuple[QwenVLTokenizer, dict[str, Any]]) -> None:
    tokenizer, golden = case
    assert dict(tokenizer.special) == golden["special_ids"]
    assert tokenizer.vocab_size == golden["n_vocab"]
    assert len(tokenizer.special) == 217


def test_golden_ids(case: tuple[QwenVLTokenizer, dict[str, Any]]) -> None:
    tokenizer, golden = case
    split = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
    image_tags = "<ref>", "<box>", "<quad>", "<img>"
    compared = 0
    for text, chat_ids, all_ids in zip(golden["texts"], golden["image_st_only"], golden["all_special"], strict=True):
        if not any(tag in text for tag in image_tags):
            assert tokenizer.encode(text) == chat_ids, text
            compared += 1
        ids: list[int] = []
        for part in split.split(text):
            ids += [tokenizer.special[part]] if part in tokenizer.special else tokenizer.encode(part)
        assert ids == all_ids, text
    assert compared == 50


def test_golden_decode(case: tuple[QwenVLTokenizer, dict[str, Any]]) -> None:
    tokenizer, golden = case
    # Not those with a picture, whose name the original wrote as ids; ours has pads there.
    plain = [entry for entry in golden["decode"] if tokenizer.special[IMG] not in entry["ids"]]
    assert plain and all(whole_text(tokenizer, entry["ids"]) == entry["text"] for entry in plain)


def test_published_ids() -> None:
    if not PUBLISHED.is_file():
        pytest.skip("the published vocabulary is not at ../shared/data/qwen.tiktoken beside the checkout")
    tokenizer = published()
    assert {text: tokenizer.encode(text) for text in ("system", "assistant", "user", "\n")} == {
        "system": [8948], "assistant": [77091], "user": [872], "\n": [198],
    }  # fmt: skip
    assert tokenizer.special["<|endoftext|>"] == 151643
    assert tokenizer.special["<imgpad>"] == 151859


@each_of("text", [*SPECIAL[:4], *SPECIAL[-9:], "<img>/etc/passwd</img>", "a<imgpad><imgpad>b"])
def test_a_typed_special_token_is_plain_text(text: str) -> None:
    ids = TINY.encode(text)
    assert max(ids) < len(TINY.special) + min(TINY.special.values()) - 217  # every id is a rank of the file
    assert b"".join(map(TINY.token_bytes, ids)) == text.encode()


def test_text_is_normalised_first() -> None:
    assert TINY.encode("e\u0301") == TINY.encode("\u00e9") == [0xC3, 0xA9]


@settings(max_examples=150)
@given(st.text(st.characters() | st.sampled_from("<>|\u0338 \n")) | st.lists(st.sampled_from(SPECIAL)).map("".join))
def test_any_text_gives_ordinary_ids_or_a_clean_error(text: str) -> None:
    try:
        ids = TINY.encode(text)
    except ChatError:
        assert any(0xD800 <= ord(char) < 0xE000 for char in text)
        return
    assert all(0 <= token_id < TINY.special["<|endoftext|>"] for token_id in ids)
    assert whole_text(TINY, ids) == unicodedata.normalize("NFC", text)


def test_a_lone_surrogate_is_refused_and_named() -> None:
    with pytest.raises(ChatError, match=r"character 2 of the text is U\+D83D"):
        TINY.encode("ab\ud83d")


@each_of("text", [" " * 1_100_000 + "x", "\u3000" * LONGEST_BLANK, "x\n" + "\t" * LONGEST_BLANK])
def test_a_run_of_blanks_that_would_end_the_process_is_refused(text: str) -> None:
    with pytest.raises(ChatError, match="blank characters in a row"):
        TINY.encode(text)


def test_a_run_of_marks_is_refused_before_it_is_sorted() -> None:
    """Row 11 of the hostile reading: sorting these takes half a minute, in one call with the lock held."""
    begun = time.process_time()
    with pytest.raises(ChatError, match="combining marks in a row"):
        TINY.encode("a" + "\u0301\u0327" * 100_000)
    assert time.process_time() - begun < 5
    text = ("a" + "\u0327\u0301" * (LONGEST_RUN // 2)) * 50
    assert whole_text(TINY, TINY.encode(text)) == unicodedata.normalize("NFC", text)


@each_of("text", [" " * (LONGEST_BLANK - 1) + "x", "x" * 600_000, "! " * 300_000, "x " * 300_000])
def test_long_text_is_encoded(text: str) -> None:
    assert whole_text(TINY, TINY.encode(text)) == text


def test_bytes_and_kinds_of_ids() -> None:
    assert TINY.token_bytes(10) == b"\n"
    assert TINY.token_bytes(TINY.special[IM_START]) == b"<|im_start|>"
    assert TINY.longest_token == len("<|extra_204|>") == max(len(TINY.token_bytes(i)) for i in range(TINY.vocab_size))
    assert TINY.token_bytes(-1) == TINY.token_bytes(TINY.vocab_size) == b""
    assert TINY.is_special(TINY.special[IM_START])
    assert TINY.is_special(TINY.special[IMG])
    assert not TINY.is_special(TINY.special[REF])  # a reader of the answer sees it
    assert not TINY.is_special(10)
    assert not TINY.is_special(-1)
    assert not TINY.is_special(TINY.vocab_size)


def test_an_answer_shows_its_tags_of_grounding() -> None:
    text = "<ref>犬</ref><box>(1,2),(3,4)</box>"
    ids = encode_pieces([*answer_pieces(text), Tag(IM_END)], TINY)
    detokenizer = Detokenizer(cast("BPETokenizer", TINY))
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == text


def test_it_has_the_calls_of_the_other_tokenizer() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    other = BPETokenizer(tokenizer, {"<|im_end|>": 0})
    missing = {name for name in dir(other) if not name.startswith("_")} - set(dir(TINY))
    # For rendered templates, of which this model has none; for rules of a tokenizer.json, which it has not.
    assert missing == {"encode_pieces", "replace_split"}


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


BYTES = [base64.b64encode(bytes([i])) + b" %d" % i for i in range(256)]


@each_of(
    ("lines", "message"),
    [
        ([*BYTES, b"not base64!! 256"], "line 257 is not"),
        ([*BYTES, b"YWI="], "line 257 is not"),
        ([*BYTES, b"YWI= x"], "line 257 is not"),
        ([*BYTES, b"YW*I= 256"], "line 257 is not"),
        ([*BYTES, b"YWI= 300"], r"not 0\.\.256"),
        ([*BYTES, b"YWI= 255"], r"not 0\.\.256"),
        (BYTES[:255], "byte 255 has no token"),
        ([], "byte 0 has no token"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, lines: list[bytes], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_ranks(write(tmp_path / "qwen.tiktoken", lines))


def test_a_file_that_is_missing_or_closed_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="qwen.tiktoken"):
        QwenVLTokenizer.from_checkpoint(Checkpoint(tmp_path))
    file = write(tmp_path / "qwen.tiktoken", BYTES)
    with forbidden(file), pytest.raises(CheckpointError, match="^qwen.tiktoken: cannot be read: Permission denied$"):
        read_ranks(file)
