"""The page's HTTP server, which answers authorized requests from the index, as JSON.

It only listens on this machine. The page stores the token from the link and sends it with each
request. We don't use a cookie, because it would be sent to all servers on this machine, including
those of other users. To prevent DNS rebinding, requests with an unknown ``Host`` are rejected.
Known secrets are redacted in all responses.
"""

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from evert.trainers.viewing.answers import ANSWERS, ASSETS, PAGE, Answers, as_json, asset
from evert.trainers.viewing.incremental_index import Index
from evert.trainers.viewing.lines import WRONG, Row

HOSTS = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATE = "state"
REFUSED = "Open the link that `evert view` printed.\n"
PATIENCE = 250
"""After each look or answer, pause for this many times its CPU time, to leave the CPU to runs."""
AGAIN = "Evert-Again"
"""Header with the number of seconds before the page may refresh."""
VERSION = "Evert-Version"
"""Header with the version of the index that the answer is based on."""
LOOKS = 1.0, 10.0
"""Minimum and maximum seconds between two looks at the files."""


class Viewer:
    """Answers requests from an index, which is updated while the page is open.

    ``prices`` are in dollars per million tokens. They are used to show the cost of runs.
    """

    def __init__(self, index: Index, prices: Mapping[str, float] | None = None) -> None:
        self.index = index
        self._answers = Answers(index, prices or {})
        self.token = secrets.token_urlsafe(24)
        self._wake_up, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="evert-view", daemon=True)
        self._trouble = ""
        self._reader = ThreadPoolExecutor(1, "evert-view-reader")

    def start(self) -> None:
        """Start watching the files."""
        self._wake_up.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching the files and close the index."""
        self._stopped.set()
        self._wake_up.set()
        self._thread.join()
        self._reader.shutdown()
        self.index.close()

    def _keep_up(self) -> None:
        while self._wake_up.wait() and not self._stopped.is_set():
            self._wake_up.clear()
            before = time.thread_time()
            try:
                self.index.look(self._stopped)
                self._trouble = ""
            except Exception as error:  # for example a full disk; the next try may succeed
                self._trouble = f"{type(error).__name__}: {error}"
            shortest, longest = LOOKS
            self._stopped.wait(
                min(longest, max(shortest, PATIENCE * (time.thread_time() - before)))
            )

    def app(self) -> web.Application:
        """Create the web application."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/api/{name}", self._api)
        app.router.add_get("/{name:[^/]*}", _asset)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            _check_host(request.host)
            response = await handler(request)
        except web.HTTPException as refused:
            response = web.Response(status=refused.status, text=refused.text)
        response.headers.update(HEADERS)
        return response

    async def _api(self, request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not secrets.compare_digest(authorization, f"Bearer {self.token}".encode()):
            raise web.HTTPForbidden(text=REFUSED)
        name = request.match_info["name"]
        if name not in (STATE, *ANSWERS):
            raise web.HTTPNotFound(text="Page not found.\n")
        self._wake_up.set()
        loop, version = asyncio.get_running_loop(), self.index.version
        body, spent = await loop.run_in_executor(self._reader, self._body, name, request.query)
        headers = {AGAIN: f"{min(30.0, PATIENCE * spent):.2f}", VERSION: str(version)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _body(self, name: str, query: Mapping[str, str]) -> tuple[bytes, float]:
        before = time.thread_time()
        try:
            row = self._state() if name == STATE else ANSWERS[name](self._answers, query)
        except (*WRONG, OSError, sqlite3.Error):  # for example, a file has changed
            raise web.HTTPNotFound(text="This does not exist (anymore).\n") from None
        return as_json(row).encode("utf-8", "replace"), time.thread_time() - before

    def _state(self) -> Row:
        """Return the version of the index, the number of unread bytes, and the first error."""
        index = self.index
        troubles = [*index.troubles.values(), self._trouble]
        trouble = next(filter(None, troubles), "")
        return {"version": index.version, "behind": index.behind, "trouble": trouble}


def _check_host(host: str) -> None:
    name = host.rpartition(":")[0] if host[-1:].isdigit() else host
    if (name or host) not in HOSTS:
        raise web.HTTPMisdirectedRequest(text=REFUSED)


async def _asset(request: web.Request) -> web.Response:
    name = request.match_info["name"] or PAGE
    kind = ASSETS.get(name)
    if kind is None:
        raise web.HTTPNotFound(text="Page not found.\n")
    return web.Response(text=asset(name), content_type=kind, charset="utf-8")
