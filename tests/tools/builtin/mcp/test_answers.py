"""What the model is shown of an MCP server's answers, and what is said of those that are none. No server is started."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.tools.builtin.mcp import stdio
from agentrl.tools.builtin.mcp.connection import Connection, ServerLost
from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.builtin.mcp.tool import result_of
from agentrl.types.errors import ToolError


def part(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"type": "text", **fields})


def answer(*content: Any, structured: Any = None, is_error: bool = False) -> SimpleNamespace:
    return SimpleNamespace(content=[*content], structured_content=structured, is_error=is_error)


def test_texts_and_links_are_shown_and_other_data_is_named() -> None:
    said = result_of(
        answer(
            part(text="See:"),
            part(type="audio", data="AAAA", mime_type="audio/wav"),
            part(type="resource", resource=SimpleNamespace(blob="AAAAAAAA")),
            part(type="resource", resource=SimpleNamespace(text="a page")),
            part(type="resource_link", name="more", uri="file:///more"),
        )
    )
    shown = ["See:", "[audio/wav, 3 bytes, not shown]", "[of no known type, 6 bytes, not shown]", "a page"]
    assert said.text.split("\n") == [*shown, "[more: file:///more]"]


def test_structured_content_is_shown_where_there_is_no_text() -> None:
    assert result_of(answer(structured={"café": 1})).text == '{"café": 1}'
    assert result_of(answer(part(text="one"), structured={"n": 1})).text == "one"


def test_an_image_that_is_not_base64_is_an_error_for_the_model() -> None:
    with pytest.raises(ToolError, match="an image of the server's answer is not base64"):
        result_of(answer(part(type="image", data="?", mime_type="image/png")))


def test_a_damaged_image_is_an_error_for_the_model_and_not_a_bug_of_the_tool() -> None:
    with pytest.raises(ToolError, match="an image of the server's answer cannot be shown"):
        result_of(answer(part(type="image", data="iVBORw0K", mime_type="image/png")))


@pytest.mark.parametrize(("content", "told"), [([part(text="no such city")], "no such city"), ([], "the call failed")])
def test_a_call_that_failed_tells_the_model_why(content: list[Any], told: str) -> None:
    with pytest.raises(ToolError, match=told):
        result_of(answer(*content, is_error=True))


def test_a_process_that_is_gone_has_no_children_streams_or_state() -> None:
    gone = os.getpid() + (1 << 22)  # above the largest number of a process
    assert (stdio._children(gone), stdio._streams(gone), stdio._state(gone)) == ([], None, "")
    assert stdio._state(os.getpid()) in ("R", "S")


async def waits() -> None:
    await asyncio.Event().wait()


async def a_connection() -> Connection:
    """A connection whose session is as if it were open."""
    held = Connection(McpSettings(command=("none",)))
    held._keeper = asyncio.create_task(waits())
    return held


async def test_a_connection_that_was_never_opened_is_closed_and_checked_in_peace() -> None:
    held = Connection(McpSettings(command=("none",)))
    await held.check()
    await held.close()
    assert held.lost is False


async def test_an_answer_of_another_form_is_an_error_for_the_model() -> None:
    from mcp import types

    held = await a_connection()

    async def asked() -> Any:
        return types.CallToolResult.model_validate({"content": 7})

    with pytest.raises(ToolError, match="the server's answer is no result of MCP: .*content"):
        await held._asked(asked())
    await held.close()


async def test_a_server_that_ends_while_it_is_asked_is_lost() -> None:
    from anyio import BrokenResourceError

    held = await a_connection()

    async def breaks() -> None:
        raise BrokenResourceError

    with pytest.raises(ServerLost):
        await held._asked(breaks())
    assert held._keeper is not None
    asyncio.get_running_loop().call_soon(held._keeper.cancel)
    with pytest.raises(ServerLost):
        await held._asked(waits())
    assert held.lost


async def test_a_server_that_refuses_a_ping_answers() -> None:
    held = await a_connection()

    async def refuses() -> None:
        raise ToolError("no such method")

    held._session = SimpleNamespace(send_ping=refuses)
    await held.check()
    assert not held.lost
    held._session = None  # there is no handshake to wait for
    await held.close()
