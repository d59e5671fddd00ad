"""transformers, imported where the first test asks for a name of it: to collect the tests takes none of its seconds."""

import importlib
from typing import Any


class _Later:
    """Stands for the package until then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("transformers"), name)


transformers: Any = _Later()
