"""Tools whose work may take the product of two lengths that an agent chooses do it in a helper process."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
import pytest

from agentrl.tools.builtin import apply_patch as tool
from agentrl.tools.builtin import patch as reading
from agentrl.tools.builtin.apply_patch import ApplyPatch
from agentrl.tools.builtin.patch import Change, patched, read_patch
from agentrl.tools.builtin.search import simulated
from agentrl.types.errors import ToolError
from agentrl.types.parts.image import image_info
from tests.images import png


def v4a(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", "*** Update File: m.py", *lines, "*** End Patch"])


@pytest.mark.slow
@pytest.mark.parametrize("hunk", [[" a"] * 100_000 + ["-b"], [" a", "-b"] * 20_000, ["@@ a", "-a"] * 50_000])
async def test_a_patch_that_nearly_fits_everywhere_is_ended(hunk: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_CPU_S", 1.0)
    read = await tool._worked(reading.read, v4a(*hunk))
    [change] = msgspec.convert(read["changes"], list[Change])
    assert len(change.hunks[0].lines) in (len(hunk), 1)
    evil = tool._worked(reading.apply, msgspec.to_builtins(change), "a\n" * 200_000)
    [small] = read_patch(v4a("-a", "+b"))
    honest = tool._worked(reading.apply, msgspec.to_builtins(small), "a\n")
    said, done = await asyncio.gather(evil, honest, return_exceptions=True)
    assert isinstance(said, ToolError)
    assert len(str(said)) < 2000
    assert done == {"text": "b\n"}


@pytest.mark.slow
async def test_what_is_no_patch_is_said_by_the_process() -> None:
    with pytest.raises(ToolError, match="this is no patch"):
        await ApplyPatch().apply_patch("please")
    with pytest.raises(ToolError, match="more than 4096 characters"):
        await ApplyPatch().apply_patch(v4a("-a").replace("m.py", "a/" * 100_000))


@pytest.mark.slow
async def test_a_patch_with_a_huge_line_number_has_none() -> None:
    huge = "9" * 5000
    read = await tool._worked(reading.read, f"--- a/m.py\n+++ b/m.py\n@@ -{huge},{huge} +1,1 @@\n-a\n+b\n")
    [change] = msgspec.convert(read["changes"], list[Change])
    assert change.hunks[0].first is None
    assert patched(change, "a\n") == "b\n"


@pytest.mark.slow
async def test_what_a_helper_raises_is_an_error_of_the_tool() -> None:
    """Whatever in a model's text the function did not expect: its episode goes on."""
    with pytest.raises(ToolError, match="cannot be read: apply raised"):
        await tool._worked(reading.apply, {"kind": "no change"}, "a")


def test_a_helper_says_what_this_process_would() -> None:
    patch = v4a("@@ x", " é", "-b", "+\ud800")
    changes = msgspec.convert(reading.read(patch)["changes"], list[Change])
    assert changes == read_patch(patch)
    text = "x\né\nb\n"
    assert reading.apply(msgspec.to_builtins(changes[0]), text) == {"text": patched(changes[0], text)}
    assert "does not apply" in reading.apply(msgspec.to_builtins(changes[0]), "y")["refused"]


@pytest.mark.parametrize("text", ["\n" * 500_000, "Doc " * 200_000, "1" * 800_000, "- " * 400_000, "\n1.\n" * 50_000])
def test_an_answer_of_a_model_is_parted_in_linear_time(text: str) -> None:
    """Before, the time grew with the square: hours for these."""
    assert len(simulated._HEAD.split(text)) < 500_000


def test_documents_are_found() -> None:
    text = "Sure:\nDoc 1: tea\nis green\n\n**Document 2**: pot\n3) cup\n (4). can"
    assert [" ".join(part.split()) for part in simulated._HEAD.split(text)[1:]] == ["tea is green", "pot", "cup", "can"]


def test_a_screenshot_larger_than_the_screen_is_not_decoded() -> None:
    from agentrl.tools.builtin.gui.gui import _resized
    from agentrl.tools.builtin.gui.scale import Scale

    scale = Scale((320, 200), (160, 100), "pixels")
    assert image_info(_resized(png(320, 200), scale)).width == 160
    large = bytearray(png(320, 200))
    large[16:24] = (30_000).to_bytes(4, "big") * 2  # the header alone says so
    large[29:33] = zlib.crc32(bytes(large[12:29])).to_bytes(4, "big")
    with pytest.raises(ToolError, match="30000 x 30000 pixels, the screen 320 x 200"):
        _resized(bytes(large), scale)
