"""POST /tokenize: a chat of either dialect, and the counts of its prompt."""

from server.http.native import read_native
from server.http.tokenize import read_tokenize
from tests.server.http.request_bodies import native, openai


def test_tokenize_reads_both_dialects() -> None:
    assert read_tokenize(openai(model="m")).model == "m"
    assert read_tokenize(openai()).chat.turns[0].role == "user"
    assert read_tokenize(b'[{"text": "Hi"}]').chat == read_native(native()).chat
    assert (read_tokenize(openai()).chat_param, read_tokenize(native()).chat_param) == ("messages", "inputs")
