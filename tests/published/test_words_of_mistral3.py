"""Where the published files of Mistral Small 3.1 split texts by another pattern than their models learnt by."""

import json
from pathlib import Path

import pytest
from packaging.version import Version
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from configs.checkpoint import CheckpointError, ConfigSection
from model.families.mistral3.processor import saved_before_5
from tests.parity.theirs import transformers
from tests.published.layouts import change, host_of
from tests.tiny.mistral3 import write_mistral3
from tokenization.processor import TemplateProcessor

pytestmark = pytest.mark.network

# As the published file has it.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "HelloWorld 12345 नमस्ते a://b", "it's IT'S CamelCaseURLs", "https://example.org/a/b//c?d=2026",
    "e\u0301te\u0301 ไม่ได้ कि க்ஷ", "3.14159 ٣٤٥", "a /\n/b\r\n\n c ", "ǅep ʰx 中文ABC",
]  # fmt: skip
FILLED = 100_100  # transformers looks only at vocabularies of more than 100,000 entries


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny directory with the wrong pattern. Its merges cross every border that a pattern may draw in `TEXTS`."""
    path = write_mistral3(tmp_path_factory.mktemp("wide"))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        [TEXTS] * 4, trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    )
    learnt = json.loads(trained.to_str())["model"]
    written = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    held = written["model"]["vocab"] | {entry["content"]: entry["id"] for entry in written["added_tokens"]}
    more = [text for text in learnt["vocab"] if text not in held] + [f"filler {i}" for i in range(FILLED)]
    held |= {text: len(held) + i for i, text in enumerate(more)}
    written["model"] |= {"vocab": held, "merges": learnt["merges"]}
    written["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": LLAMA_3}
    (path / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    return path


def ours(path: Path) -> tuple[list[list[int]], str | None]:
    """The ids of `TEXTS`, and what the table at start says of words."""
    host = host_of(path)
    assert isinstance(host, TemplateProcessor)
    return [host.tokenizer.encode(text) for text in TEXTS], host.origins.get("words")


def theirs(path: Path, *, mended: bool) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, fix_mistral_regex=mended)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


@pytest.fixture(scope="module")
def as_written(wide: Path) -> list[list[int]]:
    return theirs(wide, mended=False)


@pytest.mark.parametrize("version", [None, "5.0.0.dev0", "5.0.0"])
def test_the_published_pattern_is_mended_in_files_from_before_transformers_5(
    wide: Path, as_written: list[list[int]], version: str | None
) -> None:
    change(wide, "config.json", transformers_version=version)
    ids, told = ours(wide)
    assert ids == theirs(wide, mended=True)
    if version == "5.0.0":
        assert ids == as_written and told is None
    else:
        assert all(a != b for a, b in zip(ids, as_written, strict=True))
        assert told == "tekken's pattern; that of tokenizer.json is a known fault (docs/models.md)"


def test_another_pattern_stays_as_written(wide: Path, as_written: list[list[int]], tmp_path: Path) -> None:
    """transformers would put tekken's in its place, whatever it is, as soon as it is asked to."""
    for file in wide.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        (tmp_path / file.name).write_text(text.replace("{1,3}", "{1,2}"), encoding="utf-8")
    change(tmp_path, "config.json", transformers_version="4.50.0.dev0")
    ids, told = ours(tmp_path)
    assert ids == theirs(tmp_path, mended=False) != as_written and told is None


VERSIONS = [
    "4.50.0.dev0", "4.57.6", "4", "0.1", "5", "5.0", "5.0.0", "5.0.0.dev0", "5.0.0rc1", "5.0rc1", "5.0.0-alpha.2",
    "5.0.0b2.dev3", "v5.0.0.RC1", "5.0.0.post1", "5.0.0+local", "5.0.1.dev0", "5.1.0rc1", "5.10.0.dev0", "5.23.0",
    "10.0.0.dev0", "5.0.0.0rc1",
]  # fmt: skip


def test_versions_are_ordered_as_pep_440_orders_them() -> None:
    older = [one for one in VERSIONS if saved_before_5(ConfigSection({"transformers_version": one}, "config.json"))]
    assert older == [one for one in VERSIONS if Version(one) < Version("5.0.0")]


@pytest.mark.parametrize("version", ["main", "-1", 4.5])
def test_what_is_no_version_is_named(version: object) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: 'transformers_version' is "):
        saved_before_5(ConfigSection({"transformers_version": version}, "config.json"))
