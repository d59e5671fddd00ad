"""Whose share of the workers' time a request takes."""

from server.http.middleware.addresses import client_of_address
from tests.server.tables import each_of


def client(address: str | None) -> str:
    return client_of_address(None if address is None else (address, 1234))


@each_of(
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
    assert (client(one) == client(other)) is same


def test_no_key_is_taken_for_an_address() -> None:
    assert not client("key ab").startswith("key") and not client("10.0.0.2").startswith("key")
