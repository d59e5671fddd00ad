"""The one error that a client's own chat can cause in this room. Knows no HTTP status."""


class ChatError(ValueError):
    """A chat that cannot be answered as it stands: the client must change the field `param`.

    The message is shown to the client: it holds no path, address or name that the client did not write. `code` is what
    a program tells the error by, None for most.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def clip(text: str, limit: int = 60) -> str:
    """A client's own word, short and printable enough to stand inside an error message."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else "?" for c in shown)
