"""The document holds every route and every field that a reader takes; who asks for it, and how the page is served."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.responses import Response

from server.http.app import create_app, create_waiting_app
from server.http.health import DownloadProgress
from server.http.middleware.keys import OPEN_PATHS, ApiKeys, digest_of
from server.http.openapi.described import ref_of
from server.http.openapi.document import ROUTES
from server.http.openapi.failures import ERROR_TYPES
from server.http.pages import PATHS
from server.http.routes.chat_completions import read_openai
from server.http.routes.completions import read_completions
from server.http.routes.messages import REFUSED, read_counted, read_messages
from server.http.routes.native import KEYS, PARAMETERS, read_native
from server.http.routes.responses_body import read_responses
from server.http.routes.tokenize import read_detokenize, read_tokenize
from server.http.routes.vllm_fields import COMPLETION_FIELDS, FIELDS, RESPONSES_FIELDS
from server.metrics import Metrics
from server.requests.sampling import Defaults
from tests.server.doubles import Scene
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.http.openapi.document import VERSION, document
from tests.server.http.openapi.readers import asked_by
from tests.server.scenario import Play
from tests.tables import each_of

# By route: what reads its body. A new route with a body stands here, or a test fails.
READERS: dict[str, Any] = {
    "/chat": read_native,
    "/v1/chat/completions": read_openai,
    "/v1/responses": read_responses,
    "/v1/messages": read_messages,
    "/v1/messages/count_tokens": read_counted,
    "/v1/completions": read_completions,
    "/tokenize": read_tokenize,
    "/detokenize": read_detokenize,
}
FORMS = {"/v1/audio/transcriptions"}  # bodies that are no JSON: tests of their own compare the fields


def operations(app: Starlette) -> set[tuple[str, str]]:
    """Methods and paths of its routes, as the document writes them; the pages for a browser are none of them."""
    routes: list[Any] = list(app.routes)
    return {
        (method.lower(), route.path_format) for route in routes if route.path not in PATHS for method in route.methods
    }


def described() -> set[tuple[str, str]]:
    return {(method, path) for path, item in document()["paths"].items() for method in item}


def test_every_route_stands_in_the_document() -> None:
    assert operations(create_app(MagicMock(), bodies())) == described()


def test_a_route_that_is_not_described_is_seen() -> None:
    app = create_app(MagicMock(), bodies())
    app.add_route("/new", lambda _: Response(), methods=["POST"])
    assert operations(app) - described() == {("post", "/new")}


def test_every_route_with_a_body_has_its_reader_here() -> None:
    assert READERS.keys() | FORMS == {
        path for path, item in document()["paths"].items() if "requestBody" in item.get("post", {})
    }


def each_operation() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, item in document()["paths"].items() for method, one in item.items()]


def test_every_operation_has_a_name_of_its_own_and_asks_for_a_key_where_it_is_not_open() -> None:
    names = [one["operationId"] for _, _, one in each_operation()]
    assert len(names) == len(set(names)) > 20
    assert {path for path, _, one in each_operation() if "security" not in one} == OPEN_PATHS
    for path, method, one in each_operation():
        assert ("401" in one["responses"]) == ({"bearer": []} in one.get("security", [])) == (path not in OPEN_PATHS)
        assert any("content" in answer for answer in one["responses"].values()) == (method != "head"), path


def test_a_stream_says_what_its_events_are() -> None:
    content = document()["paths"]["/chat"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/NativeAnswer"}
    data = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert data[0] == {"const": "[DONE]"}
    refs = [one["$ref"] for one in data[1]["contentSchema"]["anyOf"]]
    assert refs[0] == "#/components/schemas/NativeEvent" and ref_of(ERROR_TYPES[500]) in refs


def test_examples_and_headers_stand_beside_the_body() -> None:
    chat = document()["paths"]["/v1/chat/completions"]["post"]
    assert len(chat["requestBody"]["content"]["application/json"]["examples"]) >= 4 and chat["requestBody"]["required"]
    assert [one["name"] for one in chat["parameters"]] == ["X-Request-Id", "X-Pixelferry-Timings"]
    named = document()["paths"]["/v1/models/{name}"]["get"]
    assert (named["parameters"][0]["name"], named["parameters"][0]["in"]) == ("name", "path")
    assert named["parameters"][0]["required"] and "404" in named["responses"]


def refused_on(path: str) -> set[str]:
    """Fields that are looked at to be refused."""
    fields = {
        "/v1/completions": COMPLETION_FIELDS, "/tokenize": (*FIELDS, *COMPLETION_FIELDS),
        "/v1/responses": RESPONSES_FIELDS, "/v1/messages": REFUSED, "/v1/messages/count_tokens": REFUSED,
    }.get(path, FIELDS)  # fmt: skip
    return {field.name for field in fields if field.treatment == "refused"}


def fields_of(path: str) -> set[str]:
    """Of all forms of the body of a route."""
    schema = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found: set[str] = set()
    for form in schema.get("anyOf", [schema]):
        if "$ref" in form:
            found |= document()["components"]["schemas"][form["$ref"].rpartition("/")[2]]["properties"].keys()
    return found


def body_of(path: str) -> Any:
    """The type that the document has for the body of a route."""
    return next(route.body for route in ROUTES if route.path == path)


@each_of("path", READERS)
def test_every_field_that_a_reader_takes_stands_in_the_document(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [dict(route.examples) for route in ROUTES if route.path == path]
    for body in examples[0].values():
        TypeAdapter(body_of(path)).validate_json(json.dumps(body))
    asked = asked_by(READERS[path], list(examples[0].values()), monkeypatch)
    assert len(asked) > 2
    assert asked - refused_on(path) - fields_of(path) == set()


def test_the_native_form_has_exactly_its_keys() -> None:
    assert fields_of("/chat") == KEYS
    assert document()["components"]["schemas"]["NativeParameters"]["properties"].keys() == PARAMETERS


def test_what_of_vllms_is_honoured_on_responses_stands_in_the_document() -> None:
    honoured = {field.name for field in RESPONSES_FIELDS if field.treatment == "honoured"}
    assert honoured <= fields_of("/v1/responses")


@each_of("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_of_vllms_is_honoured_stands_in_the_document(path: str) -> None:
    fields = FIELDS if "chat" in path else COMPLETION_FIELDS
    of_chats = {"messages", "max_completion_tokens", "mm_processor_kwargs", "add_generation_prompt"}
    of_chats |= {"continue_final_message", "chat_template_kwargs", "parallel_tool_calls"}
    honoured = {field.name for field in fields if field.treatment == "honoured"}
    assert honoured - (of_chats if path == "/v1/completions" else set()) <= fields_of(path)


def test_every_field_says_what_it_is() -> None:
    silent = [
        name
        for form in (
            "NativeChat",
            "ChatCompletionRequest",
            "TextCompletionRequest",
            "NativeParameters",
            "CreateResponse",
            "CreateMessage",
            "CountMessageTokens",
            "CreateTranscription",
        )
        for name, field in document()["components"]["schemas"][form]["properties"].items()
        if "description" not in field and name not in ("messages", "top_logprobs")
    ]
    assert silent == []


def test_references_lead_somewhere() -> None:
    text = json.dumps(document())
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert found <= document()["components"]["schemas"].keys() and len(found) > 50
    assert "422" not in text and "HTTPValidationError" not in text


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=behind_guard(app)), base_url="http://test")


def test_the_document_asks_for_a_key_and_the_page_does_not(play: Play) -> None:
    """Below a path, of which the document says so."""

    async def scenario(scene: Scene) -> None:
        keys = ApiKeys((digest_of("k"),), None)
        app = create_app(scene.service, bodies(), version=VERSION, root_path="/llm", keys=keys)
        async with client_of(app) as client:
            assert (await client.get("/openapi.json")).status_code == 401
            for path in ("/llm/openapi.json", "/openapi.json"):
                answer = await client.get(path, headers={"authorization": "Bearer k"})
                assert without_defaults(answer.json()) == {**document(), "servers": [{"url": "/llm"}]}
                assert answer.headers["content-type"] == "application/json"
            for path in ("/llm/docs", "/docs"):
                page = await client.get(path)
                assert page.status_code == 200 and VERSION not in page.text and "/chat" not in page.text

    play(scenario)


def without_defaults(served: dict[str, Any]) -> dict[str, Any]:
    """As it is without a checkpoint."""
    for schema in served["components"]["schemas"].values():
        if "repetition_penalty" in schema.get("properties", {}):
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
                del schema["properties"][name]["default"]
    return served


def test_defaults_are_those_of_the_checkpoint_that_is_served(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        defaults = Defaults(temperature=0.7, top_p=0.8, top_k=20, eos_ids=(), repetition_penalty=1.05)
        scene.service.card = replace(scene.service.card, defaults=defaults)
        async with client_of(create_app(scene.service, bodies())) as client:
            schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        for kind in ("NativeParameters", "ChatCompletionRequest", "TextCompletionRequest", "CreateResponse"):
            found = {name: schemas[kind]["properties"][name]["default"] for name in names}
            assert found == {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
        assert "default" not in schemas["NativeParameters"]["properties"]["max_tokens"]

    play(scenario)


def test_it_is_there_while_a_model_is_downloaded(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        app = create_waiting_app(DownloadProgress(), Metrics("tiny", "1"), bodies(), VERSION)
        async with client_of(app) as client:
            assert (await client.get("/openapi.json")).json() == document()
            assert (await client.get("/docs")).status_code == 200

    play(scenario)


class Seen(HTMLParser):
    """Every attribute and element of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str]] = []
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_the_page_fetches_nothing_from_outside_and_runs_its_one_script(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async with client_of(create_app(scene.service, bodies())) as client:
            page = await client.get("/docs")
        assert len(page.content) <= 100 * 1000
        policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
        assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["script-src"])
        assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["style-src"])
        assert policy["script-src"] != policy["style-src"]
        assert page.headers["x-content-type-options"] == "nosniff"
        seen = Seen()
        seen.feed(page.text)
        assert seen.elements.count("script") == seen.elements.count("style") == 1
        assert [name for name, _ in seen.attributes if name.startswith("on") or name in ("style", "src")] == []
        links = [value for name, value in seen.attributes if name == "href"]
        assert links == ["data:,", "openapi.json"]
        assert re.findall(r"https?://|innerHTML|insertAdjacentHTML|eval\(", page.text) == []

    play(scenario)
