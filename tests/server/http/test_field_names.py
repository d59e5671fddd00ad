"""Fields whose names another dialect's reader knows: errors leave with those of the client."""

import pytest

from server.http.field_names import FieldNames
from server.requests.refusal import Refusal, invalid_request
from tests.server.tables import each_of
from tokenization.chat.errors import ChatError

NAMES = FieldNames(known={"messages": "input", "messages[0].content": "instructions", "messages[1]": "input[0]",
                          "max_tokens": "max_output_tokens"})  # fmt: skip


@each_of(
    ("path", "name"),
    [
        ("messages", "input"), ("messages[0].content", "instructions"),
        ("messages[1].content[2]", "input[0].content[2]"),
        ("messages[11].role", "input[11].role"), ("messages_of", "messages_of"), ("top_p", "top_p"), ("", ""),
    ],
)  # fmt: skip
def test_the_longest_known_path_is_replaced(path: str, name: str) -> None:
    assert NAMES.of(path) == name


@each_of("kind", [ChatError, invalid_request])
def test_an_error_is_told_by_its_clients_names(kind: type[ChatError]) -> None:
    """In its message where it begins with the path, and where it names a field that no word looks like."""
    for message, param, told, name in (
        ("messages[1].role: no messages[1]", "messages[1].role", "input[0].role: no messages[1]", "input[0].role"),
        ("no", "messages", "no", "input"),
        ("more than max_tokens", "top_p", "more than max_output_tokens", "top_p"),
        ("no 'max_tokens' or max_tokens_2", "top_p", "no 'max_tokens' or max_tokens_2", "top_p"),
        ("no", None, "no", None),
    ):
        with pytest.raises((ChatError, Refusal)) as caught:
            with NAMES.told():
                raise kind(message, param)
        assert (caught.value.message, caught.value.param) == (told, name)  # type: ignore[attr-defined]
