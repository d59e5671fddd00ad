"""One route becomes operations: by method, with or without a key, with the errors and events that it may answer."""

from typing import Any

from server.http.middleware.keys import OPEN_PATHS
from server.http.openapi.described import ref_of
from server.http.openapi.failures import ERROR_TYPES
from tests.server.http.openapi.shared import document


def paths() -> dict[str, Any]:
    found: dict[str, Any] = document()["paths"]
    return found


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation."""
    return [(path, method, one) for path, item in paths().items() for method, one in item.items()]


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [one["operationId"] for _, _, one in operations()]
    assert len(names) == len(set(names)) > 20


def test_a_key_is_asked_for_on_every_route_that_is_not_open() -> None:
    open_paths = {path for path, _, one in operations() if "security" not in one}
    assert open_paths == OPEN_PATHS
    assert all({"bearer": []} in one["security"] for path, _, one in operations() if path not in OPEN_PATHS)
    assert all(("401" in one["responses"]) == (path not in OPEN_PATHS) for path, _, one in operations())


def test_an_answer_to_head_has_no_body() -> None:
    for path, method, one in operations():
        has_content = [status for status, answer in one["responses"].items() if "content" in answer]
        assert (has_content == []) == (method == "head"), path


def test_a_stream_says_what_its_events_are() -> None:
    content = paths()["/chat"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/NativeAnswer"}
    data = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert data[0] == {"const": "[DONE]"}
    refs = [one["$ref"] for one in data[1]["contentSchema"]["anyOf"]]
    assert refs[0] == "#/components/schemas/NativeEvent" and ref_of(ERROR_TYPES[500]) in refs


def test_examples_and_headers_stand_beside_the_body() -> None:
    chat = paths()["/v1/chat/completions"]["post"]
    assert len(chat["requestBody"]["content"]["application/json"]["examples"]) >= 4 and chat["requestBody"]["required"]
    assert [one["name"] for one in chat["parameters"]] == ["X-Request-Id", "X-Pixelferry-Timings"]
    named = paths()["/v1/models/{name}"]["get"]["parameters"][0]
    assert (named["name"], named["in"], named["required"]) == ("name", "path", True)
    assert "404" in paths()["/v1/models/{name}"]["get"]["responses"]
