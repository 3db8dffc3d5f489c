"""JSON that an agent may have written."""

from __future__ import annotations

import time

import pytest

from agentrl.types.parts.foreign_json import VALUES, has_many_values, read_json

MANY = VALUES + 10


@pytest.mark.parametrize(
    ("text", "many"),
    [
        (b'{"a": [1, 2, {"b": "c"}]}', False),
        (b"[" + b"[]," * MANY + b"1]", True),
        (b"[" * MANY, True),
        (b"{" + b'"a":1,' * MANY + b'"b":1}', True),
        (b"[" + b'"",' * MANY + b'""]', True),
        (b'["' + b"1,2," * MANY + b'"]', False),  # a table in a text
        (b'["' + b'\\",[' * MANY + b'"]', False),  # quotes in it
        (b'["' + b"[,{" * MANY, False),  # it does not end
        (b'["a"' + b'"' * MANY, False),  # nor is it JSON
        (b'["\\\\", ' + b"[]," * MANY + b"1]", True),  # the string ends before
        (b'"' + b"\\" * MANY, False),
    ],
)
def test_what_has_many_values_is_told_from_what_has_long_texts(text: bytes, many: bool) -> None:
    assert has_many_values(text) is many


def test_json_of_strangers_is_read_or_refused_quickly() -> None:
    assert read_json(b'{"a": [1, "\xc3\xa9"]}') == {"a": [1, "é"]}
    for text in (b"[" + b"[]," * MANY + b"1]", b"[" * 100_000 + b"]" * 100_000, b"{", b"\xff", b"", b"9" * 10_000):
        began = time.process_time()
        with pytest.raises(ValueError, match="many|more than|deep|Expecting|decode|limit"):
            read_json(text)
        assert time.process_time() - began < 1.0
