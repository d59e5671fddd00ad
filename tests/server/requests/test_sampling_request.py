"""The parameters of sampling by both routes: what is taken, and what is refused by its name."""

from typing import Any

import pytest

from server.requests.refusal import Refusal
from server.requests.sampling import INT32_MAX, MAX_ALLOWED, SamplingRequest
from tests.server.http.request_bodies import native, openai, read_native, read_openai, refusal
from tests.server.tables import each_of

HUGE = 10**400  # an integer that no float holds
NO_ID = "a key must be a token id, 0 or more"
FLAGS = ("include_stop_str_in_output", "skip_special_tokens", "ignore_eos", "logprobs")
NUMBERS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n",
)  # fmt: skip
WHOLE = ("max_tokens", "min_tokens", "top_k", "seed", "n")


def refused(name: str, value: Any, **others: Any) -> str:
    """What is said of a parameter that is named, alike but for its path, by both routes."""
    plain = refusal(read_openai, openai(**{name: value}, **others))
    nested = refusal(read_native, native(parameters={name: value, **others}))
    assert (plain.kind, nested.kind) == ("invalid_request", "invalid_request")
    assert plain.param is not None and nested.param == f"parameters.{plain.param}"
    assert plain.param.split("[")[0] == name and plain.message.startswith(f"{plain.param}: ")
    assert nested.message == f"parameters.{plain.message}" and plain.code is nested.code is None
    return plain.message


def taken(**parameters: Any) -> SamplingRequest:
    """What both routes make of them."""
    wishes = read_openai(openai(**parameters)).sampling
    assert read_native(native(parameters=parameters)).sampling == wishes
    return wishes


def test_a_body_that_says_nothing_wishes_nothing() -> None:
    assert read_openai(openai()).sampling == read_native(native()).sampling == SamplingRequest()


def test_nulls_say_nothing() -> None:
    names = ("temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "logprobs", "ignore_eos", "top_logprobs")
    nothing = dict.fromkeys(names)
    assert read_openai(openai(**nothing, model=None, stream=None, n=None)).sampling == SamplingRequest()
    assert read_native(native(parameters=nothing, stream=None, model=None)).sampling == SamplingRequest()
    assert read_native(native(parameters=None)).sampling == SamplingRequest()


def test_every_wish_arrives_by_both_routes() -> None:
    wishes: dict[str, Any] = {
        "max_tokens": 5, "temperature": 1, "top_p": 0.5, "top_k": -1, "seed": -7, "stop": "x", "ignore_eos": True,
        "logprobs": True, "top_logprobs": 20, "min_tokens": 5, "min_p": 0.25, "presence_penalty": -2,
        "frequency_penalty": 2.0, "repetition_penalty": 1.5, "n": 3,
    }  # fmt: skip
    expected = SamplingRequest(
        **{**wishes, "top_k": 0, "stop": ("x",), "temperature": 1.0}, stop_token_ids=[4, 5],
        include_stop_str_in_output=True, logit_bias={"7": -100, "8": 0.5}, allowed_token_ids=[7, 8, 7],
        bad_words=("cat", " dog"), skip_special_tokens=False,
    )  # fmt: skip
    wishes |= {
        "stop_token_ids": [4, 5],
        "include_stop_str_in_output": True,
        "logit_bias": {"7": -100, "8": 0.5},
        "allowed_token_ids": [7, 8, 7],
        "bad_words": ["cat", " dog"],
        "skip_special_tokens": False,
    }
    assert read_openai(openai(**wishes)).sampling == read_native(native(parameters=wishes)).sampling == expected


@each_of("stop", [["a"] * 16, [], "x" * 1024, ["\n", " "]])
def test_stops_that_are_taken(stop: Any) -> None:
    expected = (stop,) if isinstance(stop, str) else tuple(stop)
    assert read_openai(openai(stop=stop)).sampling.stop == expected


def test_edges_of_ranges_are_inside() -> None:
    wishes = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": (1 << 63) - 1, "max_tokens": 1, "logprobs": True}
    read = read_openai(openai(**wishes, top_logprobs=0)).sampling
    assert (read.temperature, read.top_p, read.seed) == (0.0, 1.0, (1 << 63) - 1)
    assert read_native(native(parameters={"seed": -(1 << 63)})).sampling.seed == -(1 << 63)


def test_huge_numbers_are_refused_as_such() -> None:
    for number in ("1" + "0" * 5000, "-" + "9" * 400):
        with pytest.raises(Refusal):
            read_openai(openai(seed=0).replace(b'"seed": 0', f'"seed": {number}'.encode()))


@each_of(
    ("name", "inside", "outside"),
    [
        ("max_tokens", [1, INT32_MAX], [0, -1, INT32_MAX + 1]),
        ("min_tokens", [0, INT32_MAX], [-1, INT32_MAX + 1]),
        ("temperature", [0, 0.001, 1e9], [-0.001, -1]),
        ("top_p", [1e-9, 1], [0, -0.1, 1.0001]),
        ("top_k", [0, 1, INT32_MAX], [-2, INT32_MAX + 1]),
        ("min_p", [0, 1], [-0.001, 1.001]),
        ("presence_penalty", [-2, 2], [-2.001, 2.001]),
        ("frequency_penalty", [-2, 2], [-2.001, 2.001]),
        ("repetition_penalty", [0.1, 10], [0, 0.099, 10.001, -1]),
        ("seed", [-(1 << 63), (1 << 63) - 1], [-(1 << 63) - 1, 1 << 63]),
        ("n", [1, INT32_MAX], [0, -1, INT32_MAX + 1]),
    ],
)
def test_a_range_ends_where_it_says(name: str, inside: list[float], outside: list[float]) -> None:
    assert [getattr(taken(**{name: value}), name) for value in inside] == inside
    for value in (*outside, HUGE, -HUGE):
        refused(name, value)


def test_alternatives_are_at_most_twenty() -> None:
    assert [taken(logprobs=True, top_logprobs=n).top_logprobs for n in (0, 1, 20)] == [0, 1, 20]
    for n in (-1, 21, HUGE):
        refused("top_logprobs", n, logprobs=True)


@each_of("name", NUMBERS)
def test_a_number_is_neither_quoted_nor_a_truth(name: str) -> None:
    values: list[Any] = ["1", True, [1], {}]
    for value in values:
        refused(name, value)
    if name in WHOLE:
        refused(name, 1.5)


@each_of("name", FLAGS)
def test_a_truth_is_neither_a_number_nor_a_word(name: str) -> None:
    values: list[Any] = [0, 1, "true", []]
    for value in values:
        refused(name, value)


def test_no_bound_on_top_k_has_two_names() -> None:
    assert (taken(top_k=-1).top_k, taken(top_k=0).top_k, taken().top_k) == (0, 0, None)


@each_of(
    ("value", "said"),
    [
        (3, "must be a string or a list of strings"),
        ({"a": 1}, "must be a string or a list of strings"),
        (["a", 1], "must be a string or a list of strings"),
        (["a", None], "must be a string or a list of strings"),
        (["a"] * 17, "has 17 strings; at most 16 are taken"),
        ("", "a stop string must have 1 to 1024 characters"),
        (["a", ""], "a stop string must have 1 to 1024 characters"),
        ("a" * 1025, "a stop string must have 1 to 1024 characters"),
    ],
)
def test_stops_that_are_refused(value: Any, said: str) -> None:
    assert refused("stop", value) == f"stop: {said}"


def test_stop_ids_are_a_short_list_of_ids() -> None:
    assert taken(stop_token_ids=[0, INT32_MAX]).stop_token_ids == [0, INT32_MAX]
    assert taken(stop_token_ids=[1] * 128).stop_token_ids == [1] * 128 and taken(stop_token_ids=[]) == SamplingRequest()
    for value in (3, [1] * 129):
        assert refused("stop_token_ids", value).startswith("stop_token_ids: ")
    for odd in ("a", "1", -1, 1.5, True, INT32_MAX + 1):
        assert refused("stop_token_ids", [0, odd]).startswith("stop_token_ids[1]: ")


@each_of(
    ("biases", "expected"),
    [
        ({}, ()),
        ({"0": -100, str(INT32_MAX): 100}, ((0, -100.0), (INT32_MAX, 100.0))),
        ({"007": 0.5}, ((7, 0.5),)),
        ({str(i): 1 for i in range(1024)}, tuple((i, 1.0) for i in range(1024))),
    ],
)
def test_biases_that_are_taken(biases: dict[str, float], expected: tuple[tuple[int, float], ...]) -> None:
    found = taken(logit_bias=biases).logit_bias
    assert found == expected and all(isinstance(bias, float) for _, bias in found)


@each_of(
    ("biases", "said"),
    [
        (3, "must be an object of token ids and biases"),
        ([[7, 1]], "must be an object of token ids and biases"),
        ({str(i): 1 for i in range(1025)}, "has 1025 entries; at most 1024 are taken"),
        *(({key: 1}, f"{NO_ID}: not {key!r}") for key in ("", "a", "-1", "1.5", " 1", "1_0", "\u0663")),
        *(({key: 1}, f"{NO_ID}: not {key!r}") for key in (str(INT32_MAX + 1), "0" * 11)),
        ({"9" * 5000: 1}, f"{NO_ID}: not '{'9' * 60}...'"),
        *(({"3": bias}, "a bias must be a number: not that of 3") for bias in ("1", None, True, [1])),
        *(({"3": bias}, "a bias must lie between -100 and 100: not that of 3") for bias in (100.1, -101, HUGE, -HUGE)),
        ({"3": 1, "03": 1}, "the id 3 stands there twice"),
    ],
)
def test_biases_that_are_refused(biases: Any, said: str) -> None:
    assert refused("logit_bias", biases) == f"logit_bias: {said}"


def test_allowed_ids_are_a_list_of_ids_that_is_not_empty() -> None:
    for ids in ([0], [INT32_MAX, 3, 3]):
        assert taken(allowed_token_ids=ids).allowed_token_ids == ids
    assert taken(allowed_token_ids=None) == SamplingRequest()
    values: list[Any] = [3, [], "1", {}, [0] * (MAX_ALLOWED + 1)]
    for value in values:
        assert refused("allowed_token_ids", value).startswith("allowed_token_ids: ")
    for odd in ("a", -1, 1.5, True, INT32_MAX + 1):
        assert refused("allowed_token_ids", [0, odd]).startswith("allowed_token_ids[1]: ")


@each_of("words", [["a"], [], ["x" * 256, " y ", "\n."], ["a"] * 128])
def test_bad_words_that_are_taken(words: list[str]) -> None:
    assert taken(bad_words=words).bad_words == tuple(words)


@each_of(
    ("value", "said"),
    [
        ("cat", "must be a list of strings"),
        ({"a": 1}, "must be a list of strings"),
        (["a", 1], "must be a list of strings"),
        (["a"] * 129, "has 129 words; at most 128 are taken"),
        *(
            ([word], "a word must have 1 to 256 characters that are not all blanks")
            for word in ("", " ", "\n", "a" * 257)
        ),
    ],
)
def test_bad_words_that_are_refused(value: Any, said: str) -> None:
    assert refused("bad_words", value) == f"bad_words: {said}"


def test_alternatives_alone_are_a_mistake() -> None:
    for nothing in ({}, {"logprobs": False}, {"logprobs": None}):
        assert refused("top_logprobs", 1, **nothing) == "top_logprobs: top_logprobs needs logprobs: true"
    assert taken(top_logprobs=0) == taken(top_logprobs=0, logprobs=False) == SamplingRequest()


def test_more_at_least_than_at_most_is_a_mistake() -> None:
    assert refused("min_tokens", 4, max_tokens=3) == "min_tokens: min_tokens must not be larger than max_tokens"
    assert taken(min_tokens=3, max_tokens=3).min_tokens == 3
    assert taken(min_tokens=9).min_tokens == 9, "without a limit of its own an answer may be so long"


def test_every_parameter_is_named_before_what_does_not_go_together() -> None:
    assert refused("temperature", -1, min_tokens=4, max_tokens=3).startswith("temperature: ")
