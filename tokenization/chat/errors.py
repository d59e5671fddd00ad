"""What a client's own chat can be refused for: the whole of it, or one medium."""


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


class MediaError(ValueError):
    """A medium, or an option beside it, that cannot be served as it is: the client's to change.

    For code that does not know which field of the chat the medium came from; who knows it raises a ChatError of it.
    The message is shown to the client: it holds no path, address or name that the client did not write. `param` is the
    option that is wrong, None where the medium itself is.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def shortened(text: str, limit: int = 60) -> str:
    """A client's own word, short and printable enough to stand inside an error message."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else "?" for c in shown)


def type_name(value: object) -> str:
    """What a client sent instead, in JSON's words."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "nothing" if value is None else names.get(type(value), "something else")
