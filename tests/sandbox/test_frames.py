"""Framed JSON: what a program of ours writes is read, in any pieces; what another one writes there ends in an error."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox.frames import Frames, frame
from agentrl.types.paths import data_path

spec = importlib.util.spec_from_file_location("frames_of_tools", data_path("tools", "shared", "frames.py"))
assert spec is not None
assert spec.loader is not None
inside = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inside)

MESSAGES = st.lists(
    st.tuples(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()), st.binary()), max_size=5
)


@given(MESSAGES, st.integers(min_value=1, max_value=50))
def test_both_ends_read_what_the_other_wrote(messages: list[tuple[dict[str, Any], bytes]], piece: int) -> None:
    written = b"".join(inside.frame(*each) for each in messages)
    assert written == b"".join(frame(*each) for each in messages)
    frames = Frames(1 << 20)
    pieces = [written[at : at + piece] for at in range(0, len(written), piece)]
    assert [found for each in pieces for found in frames.feed(each)] == messages
    stream = io.BytesIO(written)
    assert [inside.next_frame(stream) for _ in messages] == messages
    assert inside.next_frame(stream) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"Traceback (most recent call last):\n", "more than"),
        (inside.HEAD.pack(200, 0), "more than 100 bytes"),
        (inside.HEAD.pack(50, 51), "more than 100 bytes"),
        (inside.HEAD.pack(3, 0) + b"[1]", "no JSON object"),
        (inside.HEAD.pack(1, 0) + b"7", "no JSON object"),
        (inside.HEAD.pack(2, 0) + b"{]", "Expecting"),
        (inside.HEAD.pack(1, 0) + b"\xff", "decode"),
        (inside.HEAD.pack(90, 0) + b"[" * 90, "Expecting"),
        (inside.HEAD.pack(0, 5) + b"12345", "Expecting"),
    ],
)
def test_what_is_no_frame(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(Frames(100).feed(data))


def test_a_long_frame_is_not_waited_for() -> None:
    """The head says what will come: nothing of it is kept."""
    frames = Frames(100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(frames.feed(inside.HEAD.pack(0, 1 << 31)))


def test_a_pipe_that_breaks_off_is_an_end() -> None:
    assert inside.next_frame(io.BytesIO(b"\0\0\0")) is None
