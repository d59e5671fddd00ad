"""What `pixelferry models` prints and docs/models.md shows: each family as it declares itself, medium by medium."""

import json
from collections.abc import Iterator, Sequence

from model.family import BOUNDS, Family
from model.registry import architectures, families
from tokenization.processor import Expansion, Feature, Modality, Positions

HEAD = (
    "family",
    "takes",
    "in a prompt",
    "largest item",
    "its placeholders",
    "its positions",
    "also takes",
    "answers in a form",
    "tools",
    "devices",
)
PLACEHOLDERS: dict[Expansion, str] = {
    "run": "one run",
    "rows": "a run for each row, an id after each",
    "turns": "one run; with its sound, runs in turns",
    "frames": "a run for each frame pair, behind its time",
    "marked": "one run between marks",
    "numbered": "a run for each frame, behind its number",
}
POSITIONS: dict[Positions, str] = {
    "text": "as text",
    "grid": "step, row, column",
    "time": "time, row, column",
}
FEATURES: dict[Feature, str] = {"grounding": "boxes", "audio_in_video": "sound of videos", "tiles": "max_dynamic_patch"}

DETAILS = ("its placeholders", "its positions")  # no line of a terminal has room for them

TableRow = tuple[str, ...]


def rows() -> Iterator[TableRow]:
    """One for each medium of each family; what holds for the whole family stands in its first."""
    for family, _ in families():
        also = ", ".join(FEATURES[feature] for feature in sorted(family.features))
        form = family.processor.tool_form
        form_names = ("yes" if family.processor.structured_output else "", "" if form is None else form.name)
        whole = (also, *form_names, ", ".join(family.devices))
        media = [_medium(kind, modality) for kind, modality in family.modalities.items()] or [("text", *[""] * 4)]
        for i, medium in enumerate(media):
            yield ("" if i else family.name, *medium, *([""] * len(whole) if i else whole))


def as_text() -> str:
    """The architectures, one a line, then the table with its columns aligned, but for those that models.md explains."""
    table = [
        tuple(cell for name, cell in zip(HEAD, row, strict=True) if name not in DETAILS) for row in [HEAD, *rows()]
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([*architectures(), "", *lines])


def as_json() -> str:
    """One object: the architectures by family, and the table's rows, each of which names its family."""
    table, family = [], ""
    for row in rows():
        family = row[0] or family
        table.append(dict(zip(HEAD, (family, *row[1:]), strict=True)))
    served = {family.name: {"models": family.models, "architectures": found} for family, found in families()}
    return json.dumps({"families": served, "media": table}, indent=2, ensure_ascii=False)


def as_markdown() -> str:
    """Which models and architectures each family serves, and the same table."""
    served = [_served(family, found) for family, found in families()]
    return f"{_markdown(('family', 'models', 'architectures'), served)}\n\n{_markdown(HEAD, list(rows()))}"


def _medium(kind: str, modality: Modality) -> TableRow:
    most = "any number" if modality.most is None else f"at most {modality.most}"
    largest = "all have one size" if modality.fixed else f"by {BOUNDS[kind]}"
    return kind, most, largest, PLACEHOLDERS[modality.expansion], POSITIONS[modality.positions]


def _served(family: Family, found: Sequence[str]) -> TableRow:
    return f"`{family.name}`", family.models, ", ".join(f"`{architecture}`" for architecture in found)


def _markdown(head: TableRow, body: Sequence[TableRow]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *body])
