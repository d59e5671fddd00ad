"""The document that all tests look at: it is made once."""

from functools import cache
from typing import Any

from server.http.openapi.document import openapi_document

VERSION = "1.2.3"


@cache
def document() -> dict[str, Any]:
    """To be read, not to be changed."""
    return openapi_document(VERSION)
