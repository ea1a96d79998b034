"""An MCP server for tests: ``python mcp_server.py [PORT]``. Without a port, it uses stdio."""

import os
import sys
import time
from typing import Any

port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if sys.argv[1:] == ["0"]:
    sys.exit("The server's own words: no configuration.")

server: Any
try:
    from mcp.server.mcpserver import MCPServer

    server, options = MCPServer("test"), {"port": port} if port else {}
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP  # type: ignore[attr-defined]

    server, options = FastMCP("test", port=port or 8000), {}


@server.tool()  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()  # type: ignore[untyped-decorator]
def die(words: str) -> str:
    """Print words to standard error, and exit."""
    print(words, file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()  # type: ignore[untyped-decorator]
def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    server.run("streamable-http" if port else "stdio", **options)
