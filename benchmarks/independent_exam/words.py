"""The names of shapes, colours and ways in English and Chinese, and which of them an answer says."""

import re

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
PLURALS = {shape: f"{shape}s" for shape in SHAPES} | {"cross": "crosses"}
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black", "white")
WAYS = ("left", "right", "up", "down")
CHINESE = {
    "circle": "圆形",
    "square": "正方形",
    "triangle": "三角形",
    "star": "星形",
    "cross": "十字形",
    "ring": "圆环",
    "red": "红色",
    "orange": "橙色",
    "yellow": "黄色",
    "green": "绿色",
    "blue": "蓝色",
    "purple": "紫色",
    "black": "黑色",
    "white": "白色",
}

# A ring is looked for before a circle: in Chinese its name begins with the circle's.
_SHAPES = {
    "ring": r"\brings?\b|圆环|环形",
    "circle": r"\bcircles?\b|圆",
    "square": r"\bsquares?\b|方形|方块",
    "triangle": r"\btriangles?\b|三角",
    "star": r"\bstars?\b|星",
    "cross": r"\bcross(?:es)?\b|十字",
}
_COLOURS = {
    "red": r"\bred\b|红",
    "orange": r"\borange\b|橙",
    "yellow": r"\byellow\b|黄",
    "green": r"\bgreen\b|绿",
    "blue": r"\bblue\b|蓝",
    "purple": r"\bpurple\b|\bviolet\b|紫",
    "black": r"\bblack\b|黑",
    "white": r"\bwhite\b|白",
}
_WAYS = {
    "left": r"\bleft(?:wards?)?\b|左",
    "right": r"\bright(?:wards?)?\b|右",
    "up": r"\bup(?:wards?)?\b|上",
    "down": r"\bdown(?:wards?)?\b|下",
}
_PITCHES = {"high": r"\bhigh\b|高", "low": r"\blow\b|低"}
_GLIDES = {
    "rise": r"\bris(?:e|es|ing)\b|\bup(?:wards?)?\b|上升|升高",
    "fall": r"\bfall(?:s|ing)?\b|\bdown(?:wards?)?\b|下降|降低",
}
_PLACES = {"first": r"\bfirst\b|第一", "second": r"\bsecond\b|第二"}
# "I do not know" is no "no".
_YES_NO = {"yes": r"\byes\b|^是|^对|^有", "no": r"\bno\b|\b(?:is|are|do|does)(?: not|n't)\b(?! know)|^不(?!知)|^没|^否"}
KINDS = {
    "shape": _SHAPES,
    "colour": _COLOURS,
    "way": _WAYS,
    "pitch": _PITCHES,
    "glide": _GLIDES,
    "place": _PLACES,
    "yes or no": _YES_NO,
}
_COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_CHINESE_COUNTS = dict(zip("零一二三四五六七八九十", range(11), strict=True)) | {"两": 2}
_NONE = re.compile(r"\b(?:no|none)\b|没有")
_NO_COUNT = re.compile(r"三角形?|十字形?|第[一二]")  # what holds a Chinese number and counts nothing


def named(kind: str, text: str) -> set[str]:
    """Which names of a kind (a key of KINDS) the text says, in either language; a name that it says twice is one."""
    rest, found = text.strip().lower(), set()
    for name, pattern in KINDS[kind].items():
        rest, n = re.subn(pattern, " ", rest)
        if n:
            found.add(name)
    return found


def numbers(text: str) -> set[int]:
    """Which numbers the text says: digits, words from zero to ten, Chinese ones to ten; "none" and "no" are 0."""
    text = _NO_COUNT.sub(" ", text.lower())
    found = {int(digits) for digits in re.findall(r"\d{1,9}", text)}
    found |= {n for n, word in enumerate(_COUNTS) if re.search(rf"\b{word}\b", text)}
    found |= {n for sign, n in _CHINESE_COUNTS.items() if sign in text}
    return found or ({0} if _NONE.search(text) else set())


def with_article(words: str) -> str:
    """The words behind "a" or "an"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
