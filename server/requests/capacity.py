"""Media that no waiting would make fit, as a 400 that names the largest of them. Knows no memory and no engine."""

from collections.abc import Sequence

from server.http.errors import ServeError, bad_request
from tokenization.messages import Measured

CODE = "media_too_large"


def check_media_tokens(measured: Measured, limit: int) -> None:
    """Refuse media with more than `limit` tokens, all together. Raises ServeError (400)."""
    n = sum(measured.n_pads)
    if n <= limit:
        return
    largest = _largest(measured.n_pads)
    message = (
        f"the media of this request have {n} tokens, and this server keeps the embeddings of at most {limit}; "
        f"this is the largest, with {measured.n_pads[largest]} tokens"
    )
    raise bad_request(message, measured.wheres[largest], CODE)


def never_fits(measured: Measured) -> ServeError:
    """400: the segments are larger than all of the shared memory."""
    message = "the media of this request need more shared memory than this server has; this is the largest"
    return bad_request(message, measured.wheres[_largest(measured.nbytes)], CODE)


def _largest(sizes: Sequence[int]) -> int:
    """The index of the largest."""
    return max(range(len(sizes)), key=lambda i: sizes[i])
