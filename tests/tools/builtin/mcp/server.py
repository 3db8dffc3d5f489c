"""A server of the SDK with tools of every kind: `python server.py [PORT]`; without a port it speaks over stdio."""

import base64
import os
import struct
import sys
import threading
import zlib

from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("every kind")
count = {"calls": 0}

low = server._lowlevel_server
if os.environ.get("CHANGES"):
    options = low.create_initialization_options
    low.create_initialization_options = lambda *a, **k: options(NotificationOptions(tools_changed=True))


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def tally() -> str:
    """How often it was called."""
    count["calls"] += 1
    return f"{count['calls']} of {os.getpid()}"


@server.tool()
def picture() -> list:
    """A picture."""
    return ["red", Image(data=png(4, 3), format="png")]


@server.tool(structured_output=False)
def other() -> list:
    """What is neither text nor image."""
    text = TextResourceContents(uri="file:///a", text="inside")
    return [
        ResourceLink(type="resource_link", name="report", uri="file:///report"),
        EmbeddedResource(type="resource", resource=text),
        TextContent(type="text", text=base64.b64encode(b"x").decode()),
    ]


@server.tool()
def table() -> dict[str, int]:
    """A table."""
    return {"tea": 3}


@server.tool()
def variable(which: str) -> str:
    """A variable of the environment."""
    return os.environ.get(which, "unset")


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("the shop is closed")


@server.tool()
def die() -> str:
    """Ends the server."""
    print("out of tea", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Never answers."""
    threading.Event().wait()
    return "late"


@server.tool()
def flood(mb: int) -> str:
    """A long text."""
    return "x" * (mb * 1_000_000)


@server.tool()
def chatter(mb: int) -> str:
    """Much on stderr, and lines on stdout that are no messages."""
    for _ in range(mb):
        sys.stderr.write("e" * 1_000_000)
        os.write(1, b"no message\n" * 1000)
    return "done"


@server.tool()
async def unlock(ctx: Context) -> str:
    """One more tool from now on."""
    server.add_tool(treasure)
    if os.environ.get("TELLS"):
        await ctx.session.send_tool_list_changed()
    return "open"


def treasure() -> str:
    """Gold."""
    return "gold"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
