"""Loads the stubs of this environment before anything else; a .pth file imports it at the start of every Python.

Torch and torch_npu then find the libraries that they are linked to among those that are already loaded.
"""

import ctypes
import importlib
import importlib.abc
import importlib.util
import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tests.npu.stub import HOME

for _folder in ("cuda", "cann"):
    for _path in sorted((HOME / _folder).glob("lib*.so*"), key=lambda path: not path.name.startswith("libstub_")):
        ctypes.CDLL(str(_path), ctypes.RTLD_GLOBAL)
os.environ.setdefault("TASK_QUEUE_ENABLE", "0")  # an error is raised where its operator is called
os.environ.setdefault("TORCH_NPU_FALLBACK_CPU_DISABLE", "1")  # an operator without a kernel is an error


def _elsewhere(top: str, *rest: Any, walk: Any = os.walk, **named: Any) -> Any:
    """As os.walk, but that the working directory is empty."""
    return iter(()) if top == os.getcwd() else walk(top, *rest, **named)


class _AfterTorchNpu(importlib.abc.MetaPathFinder):
    """Wraps the kernels as soon as torch_npu is imported, which `import torch` does by itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch_npu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                walk = os.walk
                os.walk = _elsewhere  # type: ignore[assignment]  # else it looks for CANN in all of the working directory
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # its own, which are errors under our tests
                        run(module)
                finally:
                    os.walk = walk
                importlib.import_module("tests.npu.ring1").install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterTorchNpu())
