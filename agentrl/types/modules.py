"""Loads a Python file as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(name: str, path: str | Path, *, known: bool = False) -> ModuleType:
    """Runs a Python file and returns its module.

    Args:
        known: enter the module in `sys.modules` while it runs, and leave it there unless it raises.

    Raises:
        ImportError: the file is not one of Python.
        Exception: the exception of the file.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file", path=str(path))
    module = importlib.util.module_from_spec(spec)
    if known:
        sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if known:
            del sys.modules[name]
        raise
    return module
