"""Directories with vocab.json and merges.txt in place of tokenizer.json: the ids are transformers'."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split
from transformers import Qwen2Tokenizer

from configs.checkpoint import Checkpoint, CheckpointError
from model.media_tokens import vision_tokens
from tests.tables import each_of
from tests.tiny.qwen2_vl import ORDINARY_ADDED, SPECIAL
from tests.tokenization.text.test_bpe import TEXTS
from tokenization.text.bpe import BPETokenizer
from tokenization.text.tokenizer_file import added_tokens, replace_split

pytestmark = pytest.mark.network

MORE = [
    "naïve café № ½ ２３", "\u1100\u1161\u11a8 각", "a\u0085b\u00a0c\u3000d\u2028e", "I'LL he'd  \t x", "\r\n \r\n\ty ",
    "def f(x):\n    return x  # 1_000.5e-3\n", "ﬁ ﷺ", "中文 mixed 日本語 한국어", "🏳️‍🌈 flags 🇨🇳", "<think>no</think>",
]  # fmt: skip


def older(tiny: Checkpoint, path: Path, listed: bool) -> Checkpoint:
    """The tiny directory as older libraries wrote it. listed: the added tokens stand in tokenizer_config.json."""
    whole = json.loads((tiny.path / "tokenizer.json").read_text())
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    (path / "vocab.json").write_text(json.dumps(whole["model"]["vocab"], ensure_ascii=False), encoding="utf-8")
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (path / "config.json").write_text((tiny.path / "config.json").read_text())
    config = json.loads((tiny.path / "tokenizer_config.json").read_text())
    if listed:
        config["added_tokens_decoder"] = {
            str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
            for entry in whole["added_tokens"]
        }
    else:
        names = {entry["content"]: entry["id"] for entry in whole["added_tokens"]}
        (path / "added_tokens.json").write_text(json.dumps(names))
        more = {"additional_special_tokens": SPECIAL, "eos_token": {"content": "<|im_end|>", "lstrip": False}}
        (path / "special_tokens_map.json").write_text(json.dumps(more))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return Checkpoint(path)


@pytest.mark.parametrize("listed", [True, False], ids=["tokenizer_config.json", "added_tokens.json"])
def test_ids_are_those_of_transformers(tiny: Checkpoint, tmp_path: Path, listed: bool) -> None:
    checkpoint = older(tiny, tmp_path, listed)
    ours, theirs = BPETokenizer.from_checkpoint(checkpoint), Qwen2Tokenizer.from_pretrained(tmp_path)
    prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi <tool_call><|im_end|>\n"
    assert ours.encode_pieces([(prompt, False)]) == theirs(prompt)["input_ids"]
    plain = [text for text in [*TEXTS, *MORE] if not any(special in text for special in SPECIAL)]
    assert len(plain) > 20
    for text in plain:
        assert ours.encode(text) == theirs(text)["input_ids"], text
    assert (
        ours.encode_pieces([("<|image_pad|>", True)]) == theirs("<|image_pad|>", split_special_tokens=True)["input_ids"]
    )


@pytest.mark.parametrize("listed", [True, False])
def test_what_it_is_made_of_is_as_in_tokenizer_json(tiny: Checkpoint, tmp_path: Path, listed: bool) -> None:
    ours, usual = (BPETokenizer.from_checkpoint(one) for one in (older(tiny, tmp_path, listed), tiny))
    assert ours.special == usual.special and set(ours.special) == set(SPECIAL)
    assert ours.vocab_size == usual.vocab_size
    assert [ours.token_bytes(i) for i in range(ours.vocab_size)] == [
        usual.token_bytes(i) for i in range(usual.vocab_size)
    ]
    checkpoint = Checkpoint(tmp_path)
    assert added_tokens(checkpoint) == added_tokens(tiny) and set(added_tokens(tiny).values()) > set(ORDINARY_ADDED)
    assert vision_tokens(checkpoint) == vision_tokens(tiny)


def replaced(path: Path, name: str, **values: Any) -> None:
    document = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps(document | values))


@each_of(
    ("name", "content", "said"),
    [
        ("vocab.json", None, "no tokenizer.json here, and no vocab.json with merges.txt"),
        ("merges.txt", None, "no tokenizer.json here, and no vocab.json with merges.txt"),
        ("vocab.json", "[1]", "vocab.json: its entries"),
        ("vocab.json", '{"a": 0, "b": 2}', "vocab.json: its entries"),
        ("vocab.json", '{"a": 0, "b": "1"}', "vocab.json: its entries"),
        ("vocab.json", "{", "vocab.json: not valid JSON"),
        ("merges.txt", "a b c\n", "merges.txt: line 1 is not two pieces"),
        ("merges.txt", "#version: 0.2\nzz", "merges.txt: line 2 is not two pieces"),
        ("merges.txt", "zz qq", "no vocabulary of merges"),
        ("added_tokens.json", '{"<x>": 5000}', "'<x>' has the id 5000"),
        ("added_tokens.json", '{"<x>": -1}', "'<x>' is -1"),
        ("tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer"}', "tokenizer_class = 'GPT2Tokenizer'"),
        ("tokenizer_config.json", '{"add_prefix_space": true}', "add_prefix_space = True"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', "'x' is no id"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9": {"special": true}}}', "'content' is missing"),
    ],
)
def test_what_is_damaged_is_named(tiny: Checkpoint, tmp_path: Path, name: str, content: str | None, said: str) -> None:
    checkpoint = older(tiny, tmp_path, listed=False)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError) as refused:
        BPETokenizer.from_checkpoint(checkpoint)
    assert said in str(refused.value)


def test_tokenizer_json_wins_over_older_files_beside_it(tiny: Checkpoint, tmp_path: Path) -> None:
    checkpoint = older(tiny, tmp_path, listed=True)
    Tokenizer.from_file(str(tiny.path / "tokenizer.json")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "merges.txt").write_text("")
    assert BPETokenizer.from_checkpoint(checkpoint).encode("the user") == BPETokenizer.from_checkpoint(tiny).encode(
        "the user"
    )


@each_of(
    ("rule", "replaced"),
    [
        (Sequence([Split(Regex("a+"), "isolated"), ByteLevel(use_regex=False)]), True),
        (Sequence([Split(Regex("b+"), "isolated"), Split(Regex("a+"), "isolated")]), False),
        (Sequence([Split("a+", "isolated")]), False),
        (Sequence([Split(Regex("a+"), "removed")]), False),
        (Sequence([Split(Regex("a+"), "isolated", invert=True)]), False),
        (Sequence([]), False),
        (Split(Regex("a+"), "isolated"), False),
        (None, False),
    ],
)
def test_only_the_one_rule_is_replaced(rule: PreTokenizer | None, replaced: bool) -> None:
    tokenizer = Tokenizer(BPE())
    if rule is not None:
        tokenizer.pre_tokenizer = rule
    before = json.loads(tokenizer.to_str())
    assert replace_split(tokenizer, "a+", "c") is replaced
    after = json.loads(tokenizer.to_str())
    if replaced:
        before["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "c"}
    assert after == before and not replace_split(tokenizer, "a+", "c")
