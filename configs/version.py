"""The version of Pixelferry that is installed."""

import importlib.metadata


def version() -> str:
    """As pyproject.toml had it at installation; a checkout that nobody installed has none."""
    try:
        return importlib.metadata.version("pixelferry")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
