"""Makes the tools of an MCP server available to any agent, based on the ``mcp`` package."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evert.bridge.chat.fields import json_object
from evert.bridge.clients.sdks import client_package
from evert.bridge.clients.takeover import current_endpoint
from evert.bridge.errors import McpError
from evert.bridge.ownership import left_alone

LAST_WORDS, MOST_TOOLS = 2000, 1000  # bytes of stderr in error messages; maximum number of tools


async def mcp_tools(server: str | Sequence[str], timeout_s: float = 60.0) -> "McpTools":
    """Open a session with an MCP server for this episode, and return the server's tools.

    Args:
        server: The URL of a streamable HTTP server, or the command of a stdio server as a list.
        timeout_s: Timeout for each response, in seconds.

    Raises:
        McpError: The server does not start, or does not respond like an MCP server.
        MissingPackageError: The ``mcp`` package is not installed.
        EnvClosedError, EpisodeEndedError: The episode is over.
    """
    tools = McpTools(server, timeout_s)
    await tools._result_of(tools._session)
    return tools


class McpTools(list[dict[str, Any]]):
    """A server's tools in OpenAI's format (for ``tools=``), and ``call``. See ``mcp_tools``."""

    def __init__(self, server: str | Sequence[str], timeout_s: float) -> None:
        super().__init__()
        self._server, self._timeout_s, self._last_words = server, timeout_s, ""
        self._http = client_package("mcp.client.streamable_http", "mcp")
        self._session: asyncio.Future[Any] = asyncio.Future()
        if endpoint := current_endpoint():
            endpoint.episode.hold(self.close)
        # in a separate task, because the task that enters a context must also exit it
        with left_alone():
            self._serving = asyncio.create_task(self._serve(), name="evert MCP session")

    async def _serve(self) -> None:
        with tempfile.TemporaryFile("ab+") as stderr:
            try:
                await self._talk(stderr)
            finally:
                stderr.seek(max(0, stderr.seek(0, 2) - LAST_WORDS))
                self._last_words = stderr.read().decode(errors="replace").strip()

    async def _talk(self, stderr: Any) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client, types

        if isinstance(self._server, str):
            transport = self._http.streamable_http_client(self._server)
        else:
            program, *args = self._server
            transport = stdio_client(StdioServerParameters(command=program, args=args), stderr)
        async with (
            transport as (incoming, outgoing, *_),
            ClientSession(incoming, outgoing) as session,
        ):
            await session.initialize()
            page: dict[str, Any] = {"nextCursor": None}
            while "nextCursor" in page and len(self) < MOST_TOOLS:
                params = types.PaginatedRequestParams(cursor=page["nextCursor"])
                listing = await session.list_tools(params=params)
                page = listing.model_dump(by_alias=True, exclude_none=True)
                for tool in page["tools"]:
                    function = {"name": tool["name"], "parameters": tool["inputSchema"]}
                    function["description"] = tool.get("description", "")
                    self.append({"type": "function", "function": function})
            self._session.set_result(session)
            await asyncio.Future()  # wait until ``close`` cancels this task

    async def call(self, name: str, arguments: str) -> str:
        """Call a tool with a JSON object, and return the result or the error as text.

        Raises:
            McpError: The server failed or did not respond in time. The session is then closed.
        """
        if name not in (names := [tool["function"]["name"] for tool in self]):
            return f"Error: there is no tool {name!r:.200}. Available tools: {', '.join(names)}"
        if (fields := json_object(arguments)) is None:
            return f"Error: the arguments are not a JSON object: {arguments!r:.200}"
        call = asyncio.ensure_future(self._session.result().call_tool(name, fields))
        result = (await self._result_of(call)).model_dump(by_alias=True)
        parts = [part.get("text", f"[{part['type']}]") for part in result["content"]]
        return "\n".join([*(["Error:"] if result["isError"] else []), *parts])

    async def _result_of(self, request: "asyncio.Future[Any]") -> Any:
        tasks, first = {request, self._serving}, asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait(tasks, timeout=self._timeout_s, return_when=first)
            if request.done():
                return request.result()
            error = self._serving.exception() if self._serving.done() else TimeoutError()
        except Exception as failure:
            error = failure
        finally:
            request.cancel()
            await asyncio.wait({request})
        await self.close()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = f"{type(error).__name__}: {error!s:.500}; timeout {self._timeout_s:g} s"
        message = f"The MCP server {self._server!r} failed ({reason}). Its last stderr output:"
        raise McpError(f"{message} {self._last_words or 'none'}") from error

    async def close(self) -> None:
        """Close the session and stop the server. Called automatically at the end of an episode."""
        if not self._serving.cancelling():  # cancelling twice would interrupt the server's shutdown
            with suppress(RuntimeError):  # the loop is closed, so the task is gone as well
                self._serving.get_loop().call_soon_threadsafe(self._serving.cancel)
        if asyncio.get_running_loop() is self._serving.get_loop():
            await asyncio.wait({self._serving})
