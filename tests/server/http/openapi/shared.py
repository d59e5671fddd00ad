"""The document, which takes a third of a second of the processor to build: once in a process, when a test asks."""

from functools import cache
from typing import Any

from server.http.openapi.document import openapi_document

VERSION = "1.2.3"


@cache
def document() -> dict[str, Any]:
    """No test changes it."""
    return openapi_document(VERSION)
