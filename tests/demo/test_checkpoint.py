"""The demo model's directory is an ordinary checkpoint: vocabulary, template, files that others read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from demo.checkpoint import (
    GROUNDING,
    PADS,
    SPECIAL,
    id_of,
    read_weights,
    train_tokenizer,
    write_files,
    write_weights,
)
from demo.net import DemoNet
from demo.sizes import Sizes
from demo.words import Words
from tests.tables import each_of

pytestmark = pytest.mark.network

SIZES = Sizes()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(Words.load().corpus(np.random.default_rng(0), 2000), 500)


@pytest.fixture(scope="module")
def path(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_files(path, tokenizer, SIZES)
    torch.manual_seed(0)
    write_weights(path, DemoNet(SIZES, tokenizer.get_vocab_size()))
    return path


def test_the_vocabulary_is_as_large_as_asked_and_has_the_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 500 + len(SPECIAL) + len(GROUNDING)
    for text in (*SPECIAL, *GROUNDING):
        assert tokenizer.encode(f"a{text}b").ids.count(id_of(tokenizer, text)) == 1
    ids = [id_of(tokenizer, text) for text in (*SPECIAL, *GROUNDING)]
    assert tokenizer.decode(ids) == "".join(GROUNDING)  # those are words of answers


@each_of(
    "text",
    [
        "What is this?",
        "红色圆形，蓝色星形",
        "12345",
        "  two  blanks\n\nand lines",
        "a 🎈 and Ωμέγα",
        "don't",
    ],
)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    """A number is read and a box is said digit by digit."""
    for digit in "0123456789":
        assert len(tokenizer.encode(digit).ids) == 1
    assert len(tokenizer.encode("1234567890").ids) == 10


def test_training_again_gives_the_same_vocabulary(tokenizer: Tokenizer) -> None:
    again = train_tokenizer(Words.load().corpus(np.random.default_rng(0), 2000), 500)
    assert json.loads(again.to_str()) == json.loads(tokenizer.to_str())


def test_the_files_agree_with_each_other(path: Path, tokenizer: Tokenizer) -> None:
    checkpoint = Checkpoint(path)
    thinker = checkpoint.config.child("thinker_config")
    assert thinker.child("text_config").read(int, "vocab_size") == tokenizer.get_vocab_size()
    for kind, pad in PADS.items():
        assert thinker.read(int, f"{kind}_token_index") == id_of(tokenizer, pad)
    end = json.loads((path / "generation_config.json").read_text())["eos_token_id"]
    assert end == [id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>")]
    assert thinker.child("audio_config").read(int, "num_mel_bins") == SIZES.mels
    assert checkpoint.file("preprocessor_config.json").read(int, "feature_size") == SIZES.mels
    assert sum(SIZES.mrope) == SIZES.head_dim // 2
    assert sum(file.stat().st_size for file in path.iterdir()) < 12_000_000


def test_weights_come_back_as_the_file_holds_them(path: Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    written, read = (DemoNet(SIZES, tokenizer.get_vocab_size()) for _ in range(2))  # the first as in `path`
    read_weights(path, read)
    for name, value in written.state_dict().items():
        assert torch.equal(read.state_dict()[name], value.half().float()), name
    with pytest.raises(RuntimeError, match="size mismatch"):
        read_weights(path, DemoNet(SIZES, tokenizer.get_vocab_size() + 1))


def test_the_published_class_finds_every_weight(path: Path) -> None:
    """No tensor that is read is missing, none is left over, and none has another shape."""
    import transformers

    model, told = transformers.Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    # A table of training that no published code reads.
    assert told["missing_keys"] <= {"model.audio_tower.audio_bos_eos_token.weight"}
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) < 6_000_000


def test_the_tokenizer_alone_has_the_processors_template(path: Path) -> None:
    """Load generators read the tokenizer's files only. The committed files are those that this code writes."""
    import transformers

    files = ("chat_template.json", "tokenizer_config.json")
    written, committed = ([(where / file).read_text() for file in files] for where in (path, EMBEDDED_MODEL))
    assert written == committed
    template = json.loads(written[0])["chat_template"]
    assert json.loads(written[1])["chat_template"] == template
    chat = [{"role": "user", "content": "Hi"}]
    rendered = transformers.AutoTokenizer.from_pretrained(path).apply_chat_template(chat, tokenize=False)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n"
