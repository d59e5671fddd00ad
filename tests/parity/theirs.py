"""transformers, imported where the first test asks for a name of it: to collect the tests takes none of its seconds."""

import importlib
from typing import Any


class _Later:
    """Stands for the package until then. Whoever collects tests asks it for private names, of which it has none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module("transformers"), name)


transformers: Any = _Later()
