"""Whose share of the workers' time a request takes."""

from typing import Any

import pytest

from server.http.clients import client_of


def scope(address: str | None, **state: Any) -> dict[str, Any]:
    return {"type": "http", "client": None if address is None else (address, 1234), "state": state}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),  # one client may choose among these
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::1", True),
        (None, "x" * 1000, True),  # what a header may say
        ("unknown", "also unknown", True),
    ],
)
def test_clients_are_told_apart_by_their_address(one: str | None, other: str, same: bool) -> None:
    assert (client_of(scope(one)) == client_of(scope(other))) is same


def test_a_key_says_it_wherever_it_comes_from() -> None:
    assert client_of(scope("10.0.0.1", key="ab")) == client_of(scope("10.0.0.2", key="ab"))
    assert client_of(scope("10.0.0.1", key="ab")) != client_of(scope("10.0.0.1", key="cd"))
    assert client_of(scope("10.0.0.1", key="10.0.0.2")) != client_of(scope("10.0.0.2")), (
        "no key is taken for an address"
    )
