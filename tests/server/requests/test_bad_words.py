"""Words that an answer must not hold, as ids: both spellings, none twice."""

import pytest

from server.requests.bad_words import spellings
from server.requests.refusal import Refusal
from tokenization.chat.errors import ChatError
from tokenization.text.bpe import BPETokenizer


def test_a_word_is_spelled_with_and_without_a_blank(tokenizer: BPETokenizer) -> None:
    for word in ("cat", " cat", "  cat", "\tcat"):
        assert spellings([word], tokenizer, "bad_words") == tuple(
            tuple(tokenizer.encode(text)) for text in ("cat", " cat")
        )
    assert spellings(["cat", " cat"], tokenizer, "bad_words") == spellings(["cat"], tokenizer, "bad_words")
    assert spellings([], tokenizer, "bad_words") == ()


def test_a_blank_behind_a_word_is_part_of_it(tokenizer: BPETokenizer) -> None:
    assert spellings(["cat "], tokenizer, "b")[0] == tuple(tokenizer.encode("cat "))


def test_a_special_token_is_only_a_word(tokenizer: BPETokenizer) -> None:
    special = set(tokenizer.special.values())
    for ids in spellings(["<|im_end|>"], tokenizer, "bad_words"):
        assert len(ids) > 1 and not special & set(ids)


def test_a_word_without_ids_of_its_own_is_named(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> list[int]:
        raise ChatError("no ids")

    monkeypatch.setattr(tokenizer, "encode", refuse)
    with pytest.raises(Refusal) as caught:
        spellings(["cat"], tokenizer, "parameters.bad_words")
    assert (caught.value.param, caught.value.message) == ("parameters.bad_words[0]", "no ids")
