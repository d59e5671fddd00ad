"""Regular expressions of schemas and requests: what the compiler reads otherwise than ECMA-262 and Python do."""

import re

_PLAIN_GROUPS = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_OTHERS = {
    "?=": "look-ahead", "?!": "look-ahead", "?<=": "look-behind", "?<!": "look-behind", "?>": "an atomic group",
    "?P=": "a reference to a group", "?#": "a comment",
}  # fmt: skip


def unlike(pattern: str) -> str | None:
    """Why a pattern is not taken: it asks for what is not held, or would mean something else here. None: it is."""
    i, in_class, negated = 0, False, False
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            if (why := _escape(pattern[i + 1 : i + 2], in_class, negated)) is not None:
                return why
            i += 2
            continue
        if in_class:
            if c == "[" or pattern[i : i + 2] in ("&&", "--", "~~"):
                return f"{pattern[i : i + 2]!r} inside [...] is read in several ways; put a backslash in front"
            in_class = c != "]"
        elif c == "[":
            in_class = True
            negated = pattern[i + 1 : i + 2] == "^"
            i += negated
            if pattern[i + 1 : i + 2] == "]":
                return "']' comes first inside [...], which other readers take for its end; write it with a backslash"
        elif pattern[i : i + 2] == "(?" and not _PLAIN_GROUPS.match(pattern, i + 1):
            found = next((name for mark, name in _OTHERS.items() if pattern.startswith(mark, i + 1)), "a flag")
            return f"{found} in a pattern is not held"
        i += 1
    return None


def _escape(letter: str, in_class: bool, negated: bool) -> str | None:
    if letter.isdigit() and letter != "0":
        return "a reference to a group is not held"
    if letter in ("b", "B") and not in_class:
        return "a bound of words is not held"
    if letter in ("W", "D") or (in_class and negated and letter in ("w", "d")):
        return "readers differ in which letters and digits are none; name the characters that are meant"
    if letter in ("A", "z", "Z", "G"):
        return "write ^ and $ for the ends of the text"
    return None


def ascii_classes(pattern: str) -> str:
    """A pattern that `unlike` takes, with digits and letters of ASCII alone, as a schema's are read."""
    written, in_class = list[str](), False
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        named = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}.get(piece)
        if named is not None:
            written.append(named if in_class else f"[{named}]")
            continue
        written.append(piece)
        in_class = piece == "[" or (in_class and piece != "]")
    return "".join(written)
