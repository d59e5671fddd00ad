"""Text to ids and ids to bytes; special tokens have no way in through text."""

import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from configs.checkpoint import Checkpoint, CheckpointError
from tests.tables import each_of
from tests.tiny.qwen2_vl import SPECIAL
from tokenization.chat.errors import ChatError
from tokenization.text import bpe
from tokenization.text.bpe import BPETokenizer

TEXTS = [
    "", " ", "\n", "\n\nhello", "  two  blanks ", "Hello, world!", "你好，世界。", "🙂👩‍👩‍👧", "e\u0301 is é",
    "<tool_call>{}</tool_call>",
    "a<|im_end|>b", "<|image_pad|>" * 3, "<|im_start|>system\n", "\x00\x7f\u0080", "don't", "1234 5",
]  # fmt: skip


def changed(checkpoint: Checkpoint, path: Path, file: str, **values: Any) -> Checkpoint:
    """A copy of the checkpoint's small files with some keys of one of them set."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        document = json.loads((checkpoint.path / name).read_text())
        if name == file:
            document.update(values)
        (path / name).write_text(json.dumps(document))
    return Checkpoint(path)


def test_special_tokens_are_those_of_the_files(tokenizer: BPETokenizer) -> None:
    assert set(tokenizer.special) == set(SPECIAL)
    assert tokenizer.is_special(tokenizer.special["<|im_end|>"]) and not tokenizer.is_special(0)
    tool_call = tokenizer.encode("<tool_call>")
    assert len(tool_call) == 1 and not tokenizer.is_special(tool_call[0])


@each_of("text", TEXTS)
def test_text_never_becomes_a_special_token_and_comes_back(tokenizer: BPETokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special.values())
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == unicodedata.normalize("NFC", text)


def test_typed_special_tokens_are_spelled_out(tokenizer: BPETokenizer, tiny: Checkpoint) -> None:
    plain = Tokenizer.from_file(str(tiny.path / "tokenizer.json"))
    assert plain.encode("<|image_pad|>").ids == [tokenizer.special["<|image_pad|>"]]  # what must not happen
    assert len(tokenizer.encode("<|image_pad|>")) > 5


def test_a_prompt_is_cut_at_the_template_s_special_tokens_only(tokenizer: BPETokenizer) -> None:
    start, end = tokenizer.special["<|im_start|>"], tokenizer.special["<|im_end|>"]
    pieces = [("<|im_start|>user\n ", False), ("a<|im_end|>", True), ("b<|im_end|>\n", False)]
    assert tokenizer.encode_pieces(pieces) == [
        start,
        *tokenizer.encode("user\n a<|im_end|>b"),
        end,
        *tokenizer.encode("\n"),
    ]


def test_a_token_half_typed_and_half_written_is_text(tokenizer: BPETokenizer) -> None:
    ids = tokenizer.encode_pieces([("<|im_", True), ("end|>", False), ("<|im_", False), ("end|>", True)])
    assert ids == tokenizer.encode("<|im_end|><|im_end|>")


def test_merges_reach_across_marks(tokenizer: BPETokenizer) -> None:
    # "\n" + "hello" as one text; encoded apart, the newline could not merge with what follows
    assert tokenizer.encode_pieces([("x\n", False), ("\nhello", True)]) == tokenizer.encode("x\n\nhello")
    assert tokenizer.encode_pieces([("hel", False), ("lo", True), (" wor", False), ("ld", True)]) == tokenizer.encode(
        "hello world"
    )


def test_ids_that_mark_media_are_special_whatever_the_files_say(tiny: Checkpoint, tmp_path: Path) -> None:
    document = json.loads((tiny.path / "tokenizer.json").read_text())
    pad = next(entry for entry in document["added_tokens"] if entry["content"] == "<|image_pad|>")
    pad["special"] = False
    lax = changed(tiny, tmp_path, "tokenizer.json", added_tokens=document["added_tokens"])
    loose = BPETokenizer.from_checkpoint(lax)
    assert loose.encode("<|image_pad|>") == [pad["id"]]  # by the files alone it is an ordinary word
    strict = BPETokenizer.from_checkpoint(lax, {pad["id"]: "config.json"})
    assert pad["id"] not in strict.encode("x<|image_pad|>") and strict.special["<|image_pad|>"] == pad["id"]
    assert strict.encode_pieces([("<|image_pad|>", False)]) == [pad["id"]]


def test_an_ordinary_vocabulary_entry_may_mark_media_and_then_no_text_spells_it(tiny: Checkpoint) -> None:
    (the,) = BPETokenizer.from_checkpoint(tiny).encode("the")
    strict = BPETokenizer.from_checkpoint(tiny, {the: "config.json"})
    assert strict.encode_pieces([("the", False)]) == [the]
    with pytest.raises(ChatError, match="keeps for marks"):
        strict.encode_pieces([("the", True)])


def test_tokens_called_special_in_tokenizer_config(tiny: Checkpoint, tmp_path: Path, tokenizer: BPETokenizer) -> None:
    (tool_call,) = tokenizer.encode("<tool_call>")
    decoder = {str(tool_call): {"content": "<tool_call>", "special": True}}
    strict = BPETokenizer.from_checkpoint(
        changed(tiny, tmp_path, "tokenizer_config.json", added_tokens_decoder=decoder)
    )
    assert strict.is_special(tool_call) and len(strict.encode("<tool_call>")) > 3


def test_blanks_that_a_special_token_swallows(tiny: Checkpoint, tmp_path: Path, tokenizer: BPETokenizer) -> None:
    added = json.loads((tiny.path / "tokenizer.json").read_text())["added_tokens"]
    next(entry for entry in added if entry["content"] == "<|im_end|>")["lstrip"] = True
    swallowing = BPETokenizer.from_checkpoint(changed(tiny, tmp_path, "tokenizer.json", added_tokens=added))
    assert swallowing.encode_pieces([("a  <|im_end|> b", False)]) == [
        *tokenizer.encode("a"), tokenizer.special["<|im_end|>"], *tokenizer.encode(" b"),
    ]  # fmt: skip
    start = time.process_time()
    assert swallowing.encode_pieces([(" " * 60_000 + "a", False)]) == tokenizer.encode(" " * 60_000 + "a")
    assert time.process_time() - start < 1, "blanks that are tried from each of them take 3 s"


def test_truncation_and_padding_in_the_file_are_not_obeyed(
    tiny: Checkpoint, tmp_path: Path, tokenizer: BPETokenizer
) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    cut = BPETokenizer.from_checkpoint(changed(tiny, tmp_path, "tokenizer.json", truncation=truncation))
    assert cut.encode("one two three four five") == tokenizer.encode("one two three four five")


def test_token_bytes(tokenizer: BPETokenizer, tiny: Checkpoint) -> None:
    plain = Tokenizer.from_file(str(tiny.path / "tokenizer.json"))
    assert tokenizer.vocab_size == plain.get_vocab_size()
    assert tokenizer.token_bytes(tokenizer.special["<|im_end|>"]) == b"<|im_end|>"
    assert [tokenizer.token_bytes(i) for i in (-1, tokenizer.vocab_size, tokenizer.vocab_size + 2, 1 << 40)] == [
        b""
    ] * 4
    assert {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)} >= {bytes([i]) for i in range(256)}
    for i in range(tokenizer.vocab_size):
        assert tokenizer.token_bytes(i).decode("utf-8", "replace") == plain.decode([i], skip_special_tokens=False)
    assert tokenizer.longest_token == max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))


def test_a_hundred_thousand_typed_markers_cost_little(tokenizer: BPETokenizer) -> None:
    tokenizer.encode("x")
    start = time.process_time()
    ids = tokenizer.encode_pieces([("<|im_start|>", False), ("<|image_pad|>" * 20_000, True)])
    assert time.process_time() - start < 5 and tokenizer.special["<|image_pad|>"] not in ids


@each_of(
    "damage, message",
    [
        (None, "no tokenizer.json"),
        ("{", "not a tokenizer"),
        ('{"model": {}}', "not a tokenizer"),
    ],
)
def test_a_damaged_tokenizer_stops_the_load(tiny: Checkpoint, tmp_path: Path, damage: str | None, message: str) -> None:
    copy = changed(tiny, tmp_path, "")
    (tmp_path / "tokenizer.json").unlink()
    if damage is not None:
        (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(CheckpointError, match=message):
        BPETokenizer.from_checkpoint(copy)


def test_unsupported_kinds_of_vocabulary_stop_the_load(tiny: Checkpoint, tmp_path: Path) -> None:
    other = changed(tiny, tmp_path, "tokenizer.json", decoder={"type": "ByteFallback"})
    with pytest.raises(CheckpointError, match="byte-level"):
        BPETokenizer.from_checkpoint(other)


@pytest.mark.parametrize("token_id", [151655, -1])
def test_a_mark_outside_the_vocabulary_stops_the_load(tiny: Checkpoint, token_id: int) -> None:
    with pytest.raises(
        CheckpointError, match=f"config.json: .image_token_id. is {token_id}, an id that tokenizer.json does not hold"
    ):
        BPETokenizer.from_checkpoint(tiny, {token_id: "config.json: 'image_token_id'"})


# ---- files that nobody has looked at


def test_an_id_far_beyond_the_entries_is_refused_before_a_table_is_made(tiny: Checkpoint, tmp_path: Path) -> None:
    """A table with a row for each id took 16 GiB of the server."""
    model = json.loads((tiny.path / "tokenizer.json").read_text())["model"]
    model["vocab"]["zz"] = 2**31 - 1
    made = changed(tiny, tmp_path, "tokenizer.json", model=model)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: 'vocab'.* gives 'zz' the id 2147483647, and with"):
        BPETokenizer.from_checkpoint(made)


def test_added_tokens_are_bounded(tiny: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BPETokenizer.from_checkpoint(tiny)
    monkeypatch.setattr(bpe, "MOST_ADDED", 3)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: 'added_tokens' has \d+ entries, expected up to 3"):
        BPETokenizer.from_checkpoint(tiny)


def test_a_text_on_which_the_tokenizer_panics_is_refused_alone(tiny: Checkpoint, tmp_path: Path) -> None:
    splits = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    both = {"type": "Sequence", "pretokenizers": [splits, levels]}
    made = BPETokenizer.from_checkpoint(changed(tiny, tmp_path, "tokenizer.json", pre_tokenizer=both))
    with pytest.raises(ChatError, match="cannot be split by this model's tokenizer.json: Onig"):
        made.encode("x" * 40)
    assert made.encode("Hello") == made.encode("Hello")
