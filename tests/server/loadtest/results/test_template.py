"""The page's style sheet: whole rules, no address, and a colour for each series in both modes."""

import re

from server.loadtest.results.page import page
from tests.server.loadtest.examples import result_of

STYLE = page(result_of([])).partition("<style>")[2].partition("</style>")[0]


def test_every_brace_is_closed_and_nothing_is_fetched() -> None:
    assert STYLE.count("{") == STYLE.count("}") and "url(" not in STYLE and "@import" not in STYLE


def test_every_variable_that_is_used_is_set_in_both_modes() -> None:
    used = set(re.findall(r"var\((--\w+)\)", STYLE))
    light, dark = STYLE.split("prefers-color-scheme:dark")
    for mode in (light, dark):
        assert used <= set(re.findall(r"(--\w+):", mode))
