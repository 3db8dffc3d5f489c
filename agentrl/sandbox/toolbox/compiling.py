"""Byte code of the programs in sandboxes, made by the Python of the sandbox: that of another version is useless."""

from __future__ import annotations

COMPILED = """
import __future__, _frozen_importlib_external, marshal
def compiled(source, name):
    source = source.replace(b"from __future__ import annotations\\n", b"\\n")
    code = compile(source, name, "exec", __future__.annotations.compiler_flag, True, 2)
    return _frozen_importlib_external.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
"""
"""Source of `compiled`: makes the content of a `.pyc`, without docstrings.

A flag says the same as the line that it leaves out, whose import would add 1 % to the start of each sandbox.
"""
