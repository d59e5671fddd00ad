"""What a release says of itself; its files are the wheel's tests' (tests/e2e/test_wheel.py) and the tools' own."""

import pytest

from deploy.release import section

CHANGELOG = """# Changelog

## [0.2.0] - 2027-01-01

### Added

- New.

## [0.1.0] - 2026-12-01

- First.
"""


def test_the_section_of_a_version_is_whole_and_alone() -> None:
    assert section(CHANGELOG, "0.2.0+g1234") == "## [0.2.0] - 2027-01-01\n\n### Added\n\n- New.\n"
    assert section(CHANGELOG, "0.1.0") == "## [0.1.0] - 2026-12-01\n\n- First.\n"
    with pytest.raises(ValueError, match=r"no section of 0\.3\.0"):
        section(CHANGELOG, "0.3.0")
