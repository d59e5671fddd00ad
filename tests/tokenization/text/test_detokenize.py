"""Text that grows token by token equals the text decoded at once, and stop strings are found wherever they break."""

import itertools
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_of
from tokenization.text.bpe import BPETokenizer
from tokenization.text.detokenize import Detokenizer, StopStrings


def grown(tokenizer: BPETokenizer, ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(i) for i in ids] + [detokenizer.flush()])


@each_of("text", ["Hello, world!", "你好，世界。", "🙂👩‍👩‍👧 x", " \n\t", "<tool_call>a"])
def test_text_comes_back(tokenizer: BPETokenizer, text: str) -> None:
    assert grown(tokenizer, tokenizer.encode(text)) == text


def test_a_character_is_shown_when_it_is_complete(tokenizer: BPETokenizer) -> None:
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push(by_byte[bytes([byte])]) for byte in "🙂".encode()]
    assert parts == ["", "", "", "🙂"]


def test_broken_utf8_becomes_the_replacement_character(tokenizer: BPETokenizer) -> None:
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = [by_byte[bytes([byte])] for byte in b"\xf0\x9fa\xff\xe4\xbd"]
    assert grown(tokenizer, ids) == "\ufffda\ufffd\ufffd"


def test_special_and_unknown_ids_add_nothing(tokenizer: BPETokenizer) -> None:
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    first, second = (by_byte[bytes([byte])] for byte in "é".encode())
    assert grown(tokenizer, [first, tokenizer.special["<|im_end|>"], tokenizer.vocab_size + 1, second]) == "é"


def test_any_ids_equal_the_whole_decoded_at_once(tokenizer: BPETokenizer) -> None:
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randrange(1, 60))]
        whole = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i)).decode(
            "utf-8", "replace"
        )
        assert grown(tokenizer, ids) == whole


def test_the_cost_per_token_does_not_grow(tokenizer: BPETokenizer) -> None:
    detokenizer, stops = Detokenizer(tokenizer), StopStrings(["</s>", "zzzz"])
    ids = tokenizer.encode("the quick brown fox ") * 400

    def seconds(part: list[int]) -> float:
        start = time.thread_time()
        for i in part:
            stops.push(detokenizer.push(i))
        return time.thread_time() - start

    rounds = [seconds(ids) for _ in range(10)]
    assert min(rounds[5:]) < 3 * min(rounds[:5])


# ---- stop strings


def through(stops: list[str], pieces: list[str]) -> tuple[str, str]:
    """Everything shown, and the stop that was hit."""
    finder, shown = StopStrings(stops), ""
    for piece in pieces:
        text, hit = finder.push(piece)
        shown += text
        if hit:
            return shown, hit
    return shown + finder.flush(), ""


@each_of(
    "stops, text, expected",
    [
        ([], "abc", ("abc", "")),
        (["b"], "abc", ("a", "b")),
        (["bc"], "abbc", ("ab", "bc")),
        (["aab"], "aaaab", ("aa", "aab")),
        (["abc", "b"], "xabc", ("xa", "b")),  # "b" ends first
        (["abc", "bc"], "xabc", ("x", "abc")),  # both end here: the longest
        (["\n\n"], "a\nb\n", ("a\nb\n", "")),
        (["abcd"], "abc", ("abc", "")),
        (["你好"], "你你好", ("你", "你好")),
    ],
)
def test_stops_in_every_cutting_of_the_text(stops: list[str], text: str, expected: tuple[str, str]) -> None:
    borders = range(1, len(text))
    for count in range(len(text)):
        for cut in itertools.combinations(borders, count):
            ends = [0, *cut, len(text)]
            assert through(stops, [text[a:b] for a, b in itertools.pairwise(ends)]) == expected


def test_only_what_may_be_a_stop_is_held_back() -> None:
    finder = StopStrings(["</s>", "###"])
    assert finder.push("ab<") == ("ab", "")
    assert finder.push("/x") == ("</x", "")
    assert finder.push("##") == ("", "")
    assert finder.push("!") == ("##!", "")
    assert finder.flush() == ""


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


LETTERS = st.text(alphabet="ab", min_size=1, max_size=5)


def pushed_through(stops: list[str], pieces: list[str], shown: bool) -> list[tuple[str, str]]:
    """The simple search: after each piece the whole text is looked at again, character by character."""
    text, told = "", 0
    found: list[tuple[str, str]] = []
    for piece in pieces:
        for _ in range(len(piece)):
            text, piece = text + piece[0], piece[1:]
            if hits := [stop for stop in stops if text.endswith(stop)]:
                hit = max(hits, key=len)
                return [*found, (text[told : len(text) if shown else len(text) - len(hit)], hit)]
        begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        end = len(text) - max(begun, default=0)
        found.append((text[told:end], ""))
        told = end
    return [*found, (text[told:], "")]


def compared(stops: list[str], pieces: list[str], shown: bool) -> None:
    """Every push says what the search says, and holds no more back."""
    finder = StopStrings(stops, shown=shown)
    found: list[tuple[str, str]] = []
    for piece in pieces:
        found.append(finder.push(piece))
        if found[-1][1]:
            break
    else:
        found.append((finder.flush(), ""))
    assert found == pushed_through(stops, pieces, shown)


@given(st.lists(LETTERS, max_size=3), st.lists(st.text(alphabet="ab", max_size=6), max_size=8), st.booleans())
def test_stops_against_a_search_character_by_character(stops: list[str], pieces: list[str], shown: bool) -> None:
    compared(stops, pieces, shown)


def test_many_random_stops_against_the_same_search() -> None:
    rng = random.Random(0)
    for _ in range(4000):
        letters = rng.choice(["a", "ab", "abc", "abcdefgh"])
        stops = ["".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 4))]
        pieces = ["".join(rng.choices(letters, k=rng.choice([0, 1, 1, 2, 9]))) for _ in range(rng.randint(1, 12))]
        compared(stops, pieces, rng.random() < 0.5)


def test_no_push_takes_long_whatever_the_stops_are() -> None:
    """Stops that nearly end, again and again: the places that are tried are no more than the text has characters."""
    tried = 0

    class Counted(str):
        def startswith(self, *args: Any) -> bool:
            nonlocal tried
            tried += 1
            return super().startswith(*args)

    stops = [Counted(("abaababaabaab" * 90)[:1000] + chr(65 + i)) for i in range(4)]
    finder, text = StopStrings(stops), (("abaababaabaab" * 90)[:999] + "x") * 5
    for char in text:
        assert not finder.push(char)[1]
    assert len(text) < tried <= 2 * len(stops) * len(text)


def test_special_tokens_stand_by_their_names_where_they_are_not_left_out(tokenizer: BPETokenizer) -> None:
    rng = random.Random(1)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(1, 40))]
        detokenizer = Detokenizer(tokenizer, skip_special=False)
        text = "".join([detokenizer.push(i) for i in ids] + [detokenizer.flush()])
        assert text == b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
