"""The parameters of sampling by both routes: what is taken, and what is refused by its name."""

from typing import Any

import pytest

from server.http.native import read_native
from server.http.openai import read_openai
from server.requests.refusal import Refusal
from server.requests.sampling import Wishes
from tests.server.http.request_bodies import native, openai


def test_a_body_that_says_nothing_wishes_nothing() -> None:
    assert read_openai(openai()).wishes == read_native(native()).wishes == Wishes()


def test_nulls_say_nothing() -> None:
    names = ("temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "logprobs", "ignore_eos", "top_logprobs")
    nothing = dict.fromkeys(names)
    assert read_openai(openai(**nothing, model=None, stream=None, n=None)).wishes == Wishes()
    assert read_native(native(parameters=nothing, stream=None, model=None)).wishes == Wishes()
    assert read_native(native(parameters=None)).wishes == Wishes()


def test_every_wish_arrives_by_both_routes() -> None:
    wishes: dict[str, Any] = {
        "max_tokens": 5, "temperature": 1, "top_p": 0.5, "top_k": -1, "seed": -7, "stop": "x", "ignore_eos": True,
        "logprobs": True, "top_logprobs": 20, "min_tokens": 5, "min_p": 0.25, "presence_penalty": -2,
        "frequency_penalty": 2.0, "repetition_penalty": 1.5, "n": 3,
    }  # fmt: skip
    expected = Wishes(
        **{**wishes, "top_k": 0, "stop": ("x",), "temperature": 1.0}, stop_token_ids=(4, 5), include_stop=True,
        logit_bias=((7, -100.0), (8, 0.5)),
    )  # fmt: skip
    wishes |= {
        "stop_token_ids": [4, 5],
        "include_stop_str_in_output": True,
        "logit_bias": {"7": -100, "8": 0.5},
    }
    assert read_openai(openai(**wishes)).wishes == read_native(native(parameters=wishes)).wishes == expected


@pytest.mark.parametrize("stop", [["a"] * 16, [], "x" * 1024, ["\n", " "]])
def test_stops_that_are_taken(stop: Any) -> None:
    expected = (stop,) if isinstance(stop, str) else tuple(stop)
    assert read_openai(openai(stop=stop)).wishes.stop == expected


def test_edges_of_ranges_are_inside() -> None:
    wishes = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": (1 << 63) - 1, "max_tokens": 1, "logprobs": True}
    read = read_openai(openai(**wishes, top_logprobs=0)).wishes
    assert (read.temperature, read.top_p, read.seed) == (0.0, 1.0, (1 << 63) - 1)
    assert read_native(native(parameters={"seed": -(1 << 63)})).wishes.seed == -(1 << 63)


def test_huge_numbers_are_refused_as_such() -> None:
    for number in ("1" + "0" * 5000, "-" + "9" * 400):
        with pytest.raises(Refusal):
            read_openai(openai(seed=0).replace(b'"seed": 0', f'"seed": {number}'.encode()))
