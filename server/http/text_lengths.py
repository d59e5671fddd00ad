"""A body's long texts are counted before they are parsed: one that is longer than any prompt is refused at once."""

import re
from dataclasses import dataclass

import numpy as np

from server.http.large_bodies import Steps
from server.http.long_texts import BACKSLASH, Span, pieces_of, without_pairs
from server.requests.refusal import invalid_request

U, D = b"ud"
LOWER = 0x20  # the bit by which small letters are others
# Of media without `data:`: base64 in either alphabet, as encoders of JSON write it, and broken into lines.
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_= \\"
FOREIGN = bytes(byte not in BASE64 for byte in range(256))
ESCAPED = list(b"/nrtu")  # what may stand behind a backslash
OTHER_CODE = re.compile(rb"\\u(?!00(?:2[bBfF]|3[dD]))")  # than those of + / =
FEWEST = 1 << 22  # characters that any text may have: a tool call's arguments, whose blanks are in no prompt


@dataclass(frozen=True, slots=True)
class TextLength:
    """How long one text of a body may be.

    Each is held to it alone, since a body may have 64 prompts. Where a text stands is not known yet: those of fields
    that nothing reads are held to it, too.
    """

    most_characters: int  # of a prompt
    max_model_len: int

    def check(self, raw: bytes | bytearray, span: Span) -> Steps[None]:
        """Raises Refusal for a text that is surely longer, and surely no medium."""
        begin, end = span
        most = max(FEWEST, self.most_characters)
        if end - begin <= most or raw[begin : begin + 5].lower() == b"data:":
            return
        for piece in pieces_of(raw, span):
            yield
            if not may_be_base64(piece):
                break
        else:
            return
        n = 0
        for piece in pieces_of(raw, span):
            yield
            n += fewest_characters(piece)
            if n > most:
                raise invalid_request(
                    f"the body holds a text of at least {n} characters, more than fit into the model's "
                    f"{self.max_model_len} tokens",
                    code="context_length_exceeded",
                )


def fewest_characters(piece: bytes) -> int:
    """Of JSON's text between whole characters: no escape is taken for more of them than it is.

    Exact, but for `\\ud` of Korean letters, which count as half of a pair, and for what is not valid.
    """
    whole = np.frombuffer(piece, np.uint8)
    n = len(piece)
    if not piece.isascii():
        n -= int(np.count_nonzero(whole & 0xC0 == 0x80))
    slashes = int(np.count_nonzero(whole == BACKSLASH))
    if not slashes:
        return n
    single = without_pairs(whole)
    begin = single == BACKSLASH
    codes = begin[:-2] & (single[1:-1] == U)
    halves = codes & (single[2:] | LOWER == D)
    n_single = int(np.count_nonzero(begin))
    n -= (slashes - n_single) // 2 + n_single
    return n - 4 * int(np.count_nonzero(codes)) - int(np.count_nonzero(halves)) // 2


def may_be_base64(piece: bytes) -> bool:
    """Whether JSON's text between whole characters holds nothing else."""
    if b"\1" in piece.translate(FOREIGN):
        return False
    marks = np.frombuffer(piece, np.uint8)
    escaped = np.bincount(marks[1:][marks[:-1] == BACKSLASH], minlength=256)
    if escaped.sum() != escaped[ESCAPED].sum():
        return False
    return not escaped[U] or OTHER_CODE.search(piece) is None
