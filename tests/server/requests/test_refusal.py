"""A refusal tells a program what to do next: change the request, come back later, or neither."""

from typing import get_args

import pytest

from server.requests.refusal import (
    Refusal,
    RefusalKind,
    body_too_large,
    encoded_body,
    forbidden,
    head_too_large,
    internal,
    invalid_request,
    listed,
    not_found,
    overloaded,
    timed_out,
    unauthorized,
    unavailable,
)


def test_what_the_client_must_change_names_the_field_and_no_time() -> None:
    for make, kind in ((invalid_request, "invalid_request"), (not_found, "not_found")):
        found = make("no such thing", "messages[0].role", "a_code")
        assert (found.kind, found.param, found.code) == (kind, "messages[0].role", "a_code")
        assert found.retry_after is None
        silent = make("no such thing")
        assert (silent.param, silent.code) == (None, None)


def test_what_may_succeed_later_says_when() -> None:
    for make, kind in ((overloaded, "overloaded"), (unavailable, "unavailable")):
        soon, late = make("not now", "a_code"), make("not now", "a_code", 7.5)
        assert [(found.kind, found.code) for found in (soon, late)] == [(kind, "a_code")] * 2
        assert (soon.retry_after, late.retry_after) == (1.0, 7.5)
        assert soon.param is None


def test_a_body_that_is_too_large_is_told_the_limit() -> None:
    found = body_too_large(4096)
    assert (found.kind, found.code, found.retry_after) == ("body_too_large", "body_too_large", None)
    assert "4096 bytes" in found.message


def test_who_has_no_key_is_told_so_and_need_not_come_back() -> None:
    found = unauthorized("no key")
    assert (found.kind, found.code, found.param, found.retry_after) == ("unauthorized", "invalid_api_key", None, None)


def test_a_fault_of_ours_has_a_code_and_no_time() -> None:
    assert (internal("broken").kind, internal("broken").code) == ("internal", "internal")
    assert internal("broken", "worker_died").code == "worker_died"
    assert internal("broken").retry_after is None


def test_a_refusal_is_raised_and_shown_by_its_message() -> None:
    with pytest.raises(Refusal, match="^no such thing$") as caught:
        raise invalid_request("no such thing")
    assert caught.value.message == "no such thing"


def test_every_kind_has_a_name_to_make_it_by() -> None:
    made = [invalid_request("x"), not_found("x"), body_too_large(1), overloaded("x", "c"), unavailable("x", "c")]
    made += [internal("x"), unauthorized("x"), forbidden("x", "c"), timed_out("x", "c"), head_too_large(1)]
    made.append(encoded_body("gzip"))
    assert {found.kind for found in made} == set(get_args(RefusalKind))


def test_a_clients_words_are_listed_short_and_few() -> None:
    assert listed(["a", "x" * 99]) == f"'a', '{'x' * 60}...'" and listed([7, 8], most=1) == "7 and 1 more"
