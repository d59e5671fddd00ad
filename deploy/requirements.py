"""Prints what pyproject.toml requires, with the extras that are named: `python deploy/requirements.py npu`.

An image installs these in a layer of their own, which a change of the code leaves as it is.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib  # nothing else is installed yet

project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, sep="\n")
