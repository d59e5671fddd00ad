"""Vocabularies of SentencePiece's kind: ids and texts are those of transformers, in one piece and in many."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from configs.checkpoint import Checkpoint, CheckpointError
from tests.published.layouts import change
from tests.tables import each_of
from tests.tiny.sentencepiece import Form, write_pieces
from tokenization.chat.errors import ChatError
from tokenization.text.bpe import BPETokenizer
from tokenization.text.detokenize import Detokenizer, whole_text

pytestmark = pytest.mark.network

FORMS: tuple[Form, ...] = ("prepend", "first", "unigram")
SPECIAL = ("<image>", "<pad>")
TEXTS = [
    " ", "  ", "\n", "\n\nhello", " one blank", "  two  blanks ", "Hello, world!", "你好，世界。鳥", "🙂👩‍👩‍👧",
    "a\tb\r\n", "▁", "a▁b", "<0x41>", "the picture; what is in this image?", "\x00\x7f\u0080", "1234 5",
]  # fmt: skip


def opened(path: Path, form: Form, **settings: Any) -> tuple[BPETokenizer, Any]:
    """Ours, and transformers' on the same two files: of the later form by the class that writes it, too."""
    write_pieces(path, form, SPECIAL, settings)
    (path / "config.json").write_text("{}")
    theirs = LlamaTokenizer if form == "first" else PreTrainedTokenizerFast
    return BPETokenizer.from_checkpoint(Checkpoint(path)), theirs.from_pretrained(path)


@pytest.fixture(scope="module", params=FORMS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[BPETokenizer, Any]:
    return opened(tmp_path_factory.mktemp(request.param), request.param)


def grown(tokenizer: BPETokenizer, ids: list[int], **how: Any) -> str:
    detokenizer = Detokenizer(tokenizer, **how)
    return "".join([detokenizer.push(i) for i in ids] + [detokenizer.flush()])


@each_of("text", TEXTS)
def test_ids_and_texts_are_those_of_transformers(both: tuple[BPETokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text) == ids
    assert [*ours.opening, *ids] == theirs.encode(text) and ours.opening == (1,)
    whole = theirs.decode(ids)
    assert grown(ours, ids) == whole_text(ours, ids) == whole
    assert theirs.decode([1, *ids]) == whole_text(ours, [1, *ids])


def test_pieces_between_special_tokens_are_encoded_as_in_the_whole(both: tuple[BPETokenizer, Any]) -> None:
    ours, theirs = both
    rng = random.Random(0)
    parts = [*TEXTS, "USER: ", *["<image>"] * 8, "\n", "</s>", " ASSISTANT:", "the"]
    for _ in range(300):
        pieces = [rng.choice(parts) for _ in range(rng.randrange(1, 8))]
        text = "".join(pieces)
        assert ours.encode_pieces([(piece, False) for piece in pieces]) == theirs.encode(text, add_special_tokens=False)


def test_a_special_token_that_is_typed_is_text(both: tuple[BPETokenizer, Any]) -> None:
    ours, _ = both
    ids = ours.encode_pieces([("<image>", False), ("a<image>b", True)])
    assert ids[0] == ours.special["<image>"] and not set(ids[1:]) & set(ours.special.values())
    assert grown(ours, ids).strip() == "a<image>b"


def test_text_that_grows_equals_the_text_decoded_at_once(both: tuple[BPETokenizer, Any]) -> None:
    """Ids of whole characters; the next test has the others."""
    ours, theirs = both
    rng = random.Random(1)
    words = [ours.encode(text) for text in TEXTS] + [[1], [2], [ours.special["<image>"]]]
    for _ in range(300):
        ids = [i for _ in range(rng.randrange(1, 8)) for i in rng.choice(words)]
        assert grown(ours, ids) == theirs.decode(ids, skip_special_tokens=True)
        assert whole_text(ours, ids) == theirs.decode(ids)
        told = theirs.decode([ours.special["<pad>"], *ids]).removeprefix("<pad>")
        assert grown(ours, ids, skip_special=False, continues=True) == told


def test_a_broken_character_is_one_mark_and_takes_nothing_with_it(both: tuple[BPETokenizer, Any]) -> None:
    """transformers writes U+FFFD for each byte of the run in which it stands, characters that are whole among them."""
    ours, theirs = both
    byte = {ours.token_bytes(i): i for i in range(3, 259)}
    ids = [byte[bytes([b])] for b in "鳥鳥".encode()[:5]]
    assert theirs.decode(ids) == "\ufffd" * 5
    assert grown(ours, ids) == whole_text(ours, ids) == "鳥\ufffd"


def test_a_blank_is_seen_where_the_text_goes_on(both: tuple[BPETokenizer, Any]) -> None:
    ours, _ = both
    the = ours.encode("the")
    assert grown(ours, [*the, *the]) == "the the" and grown(ours, the, continues=True) == " the"


def test_what_stands_before_a_prompt_is_what_the_files_say(tmp_path: Path) -> None:
    assert opened(tmp_path, "prepend", add_bos_token=False)[0].opening == ()
    change(tmp_path, "tokenizer_config.json", add_bos_token=None, add_eos_token=None)
    assert BPETokenizer.from_checkpoint(Checkpoint(tmp_path)).opening == (1,)  # tokenizer.json's post-processor
    change(tmp_path, "tokenizer_config.json", add_eos_token=True)
    with pytest.raises(CheckpointError, match="add_eos_token"):
        BPETokenizer.from_checkpoint(Checkpoint(tmp_path))


def test_a_vocabulary_without_bytes_has_a_name_for_what_it_lacks(tmp_path: Path) -> None:
    opened(tmp_path, "prepend")
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["byte_fallback"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    ours = BPETokenizer.from_checkpoint(Checkpoint(tmp_path))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.encode("the 鳥") == theirs.encode("the 鳥", add_special_tokens=False)
    assert 0 in ours.encode("the 鳥")


def test_a_mark_that_pieces_spell_is_refused(tmp_path: Path) -> None:
    the = opened(tmp_path, "prepend")[0].encode("the")
    assert len(the) == 1
    strict = BPETokenizer.from_checkpoint(Checkpoint(tmp_path), {the[0]: "config.json"})
    with pytest.raises(ChatError, match="keeps for marks"):
        strict.encode_pieces([("the", True)])


@each_of(
    "decoder",
    [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        None,
    ],
)
def test_another_way_to_join_pieces_stops_the_load(tmp_path: Path, decoder: dict[str, Any] | None) -> None:
    opened(tmp_path, "prepend")
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "decoder": decoder}))
    with pytest.raises(CheckpointError, match="only byte-level vocabularies .* and SentencePiece's"):
        BPETokenizer.from_checkpoint(Checkpoint(tmp_path))
