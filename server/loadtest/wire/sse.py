"""Server-sent events out of bytes, in whatever pieces these come: comments, line ends of three kinds."""


class Events:
    """Collects bytes; gives the data of each event that they complete (the standard's rules, for UTF-8)."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended; joined once, however many pieces it came in
        self._data: list[bytes] = []
        self._after_cr = False
        self.comments = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that ends in these bytes; events without data are none."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data[-1:] == b"\r" if data else self._after_cr
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._rest.append(data)
        if b"\n" not in data:
            return []
        lines = b"".join(self._rest).split(b"\n")
        self._rest = [lines.pop()]
        found: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                value = line[5:]
                self._data.append(value[1:] if value.startswith(b" ") else value)
            elif line.startswith(b":"):
                self.comments += 1
        return found

    def rest(self) -> bytes | None:
        """Data of a last event without the blank line behind it, which some servers leave out; None: there is none."""
        found = self.feed(b"\n\n") if any(self._rest) or self._data else []
        return found[0] if found else None
