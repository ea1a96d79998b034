"""The page's server: it answers requests that have the link's token, in JSON, from the index.

It listens only on this machine. The page keeps the link's token and sends it with each request; a
cookie would go to all servers on this machine, including those of other users. A request that names
another host is refused: it comes from a foreign page whose name resolves to this machine (DNS
rebinding). Every answer goes through ``redacted``, so that no known secret leaves.
"""

import asyncio
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from evert.bridge.redaction import redacted
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.viewing import asking, runs
from evert.trainers.viewing.index import Index
from evert.trainers.viewing.lines import WRONG, Row, page_row
from evert.trainers.viewing.pieces import load_tokenizer, pieces, tokenizer_file

HOSTS = ("127.0.0.1", "localhost", "[::1]")
ASSETS = {
    "": ("page.html", "text/html"),
    "view.js": ("view.js", "text/javascript"),
    "uplot.js": ("uplot.js", "text/javascript"),
    "uplot.css": ("uplot.css", "text/css"),
    "view.css": ("view.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REFUSED = "Open the link that `evert view` printed.\n"
PATIENCE = 250
"""Length of the pause after a look or an answer, as a multiple of its time: runs need the CPU."""
AGAIN = "Evert-Again"
"""Header: seconds after which an idle page may ask again."""
VERSION = "Evert-Version"
"""Header: version of the index that answered."""
LOOKS = 1.0, 10.0
"""Minimum and maximum seconds between two looks at the files."""


class Viewer:
    """Answers requests from an index, which it keeps up to date while the page is open."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.token = secrets.token_urlsafe(24)
        self._wake_up, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="evert-view", daemon=True)
        self._trouble = ""
        self._reader = ThreadPoolExecutor(1, "evert-view-reader")

    def start(self) -> None:
        """Start to look at the files."""
        self._wake_up.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, and close the index."""
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
            except Exception as error:  # a full disk, say: the next look may succeed
                self._trouble = f"{type(error).__name__}: {error}"
            shortest, longest = LOOKS
            self._stopped.wait(
                min(longest, max(shortest, PATIENCE * (time.thread_time() - before)))
            )

    def app(self) -> web.Application:
        """The web application."""
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
        answer = ANSWERS.get(request.match_info["name"])
        if answer is None:
            raise web.HTTPNotFound(text="There is no such page.\n")
        self._wake_up.set()
        loop, version = asyncio.get_running_loop(), self.index.version
        body, spent = await loop.run_in_executor(
            self._reader, self._answer_body, answer, request.query
        )
        headers = {AGAIN: f"{min(30.0, PATIENCE * spent):.2f}", VERSION: str(version)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _answer_body(self, answer: "Answer", query: Mapping[str, str]) -> tuple[bytes, float]:
        before = time.thread_time()
        try:
            result = answer(self, query)
        except (*WRONG, OSError, sqlite3.Error):  # a file has changed, say
            raise web.HTTPNotFound(text="It does not exist, or no longer exists.\n") from None
        text = redacted(_as_json(result)).encode("utf-8", "replace")
        return text, time.thread_time() - before

    # -- the answers -----------------------------------------------------------------------------

    def state(self, query: Mapping[str, str]) -> Row:
        """Return the index's version, the unread bytes, and the first error."""
        index = self.index
        troubles = [*index.troubles.values(), self._trouble]
        trouble = next(filter(None, troubles), "")
        return {"version": index.version, "behind": index.behind, "trouble": trouble}

    def all_runs(self, query: Mapping[str, str]) -> Row:
        """Return all runs, the most recently written first."""
        counts = asking.counts(self.index)
        overviews = [self._overview(run, counts) for run in self.index.runs]
        overviews.sort(key=lambda overview: overview["written"], reverse=True)
        return {"runs": overviews, "colours": COLOURS}

    def _overview(self, run: int, counts: Mapping[int, Row]) -> Row:
        empty = {"id": run, "episodes": 0, "recorded": 0, "broken": 0}
        return empty | counts.get(run, {}) | runs.overview(*self._folder(run))

    def _folder(self, run: int) -> tuple[Path, object]:
        """A run's folder, with the stamps of its files."""
        return self.index.runs[run], self.index.facts.get(run)

    def one_run(self, query: Mapping[str, str]) -> Row:
        """Return the figures and the steps of a run."""
        run = self._run(query)
        rows = runs.rows_of(*self._folder(run))
        overview = self._overview(run, asking.counts(self.index))
        overview |= runs.figures(self.index.runs[run], rows) | {"colours": COLOURS}
        return overview | {"stages": asking.steps(self.index, run)}

    def metric(self, query: Mapping[str, str]) -> Row:
        """Return a metric of a run by step."""
        run = self._run(query)
        return runs.metric(runs.rows_of(*self._folder(run)), query["key"])

    def step(self, query: Mapping[str, str]) -> Row:
        """Return the episodes of a step."""
        run, split, model, step = (
            self._run(query), query["split"], query["model"], int(query["step"]),
        )  # fmt: skip
        episodes = asking.episodes(self.index, run, split, model, step)
        return {"run": run, "name": self.index.runs[run].name, "episodes": episodes}

    def episode(self, query: Mapping[str, str]) -> Row:
        """Return an episode, with its group and its neighbours."""
        entry, line = asking.episode(self.index, int(query["id"]))
        row, run = page_row(line, entry["part"]), self.index.runs[entry["run"]]
        neighbours = asking.episodes(
            self.index, entry["run"], entry["split"], entry["model"], entry["step"]
        )
        group = [episode for episode in neighbours if _group(episode) == _group(entry)]
        texts = _pieces(row, run)
        return {
            "entry": entry, "row": row, "name": run.name, "pieces": texts, "group": group,
            "step": [episode["id"] for episode in neighbours if episode["kind"] == entry["kind"]],
            "same": asking.same_task(self.index, entry),
        }  # fmt: skip

    def search(self, query: Mapping[str, str]) -> Row:
        """Return the episodes that contain some words."""
        runs_, matches = self.index.runs, asking.search(self.index, query["words"])
        episodes = [
            entry | {"name": runs_[entry["run"]].name} for entry in matches if entry["run"] in runs_
        ]
        return {"episodes": episodes}

    def _run(self, query: Mapping[str, str]) -> int:
        run = int(query["run"])
        if run not in self.index.runs:
            raise KeyError(run)
        return run


Answer = Callable[[Viewer, Mapping[str, str]], Row]
ANSWERS: Mapping[str, Answer] = {
    "state": Viewer.state,
    "runs": Viewer.all_runs,
    "run": Viewer.one_run,
    "metric": Viewer.metric,
    "step": Viewer.step,
    "episode": Viewer.episode,
    "search": Viewer.search,
}


def _group(entry: Row) -> tuple[str, int, str]:
    return entry["kind"], entry["grp"], entry["seat"]


def _pieces(row: Row, run: Any) -> list[list[str]] | None:
    """The texts of each turn's tokens; None without a tokenizer."""
    name = row.get("tokenizer")
    file = tokenizer_file(name, run) if isinstance(name, str) else None
    tokenizer = load_tokenizer(file) if file else None
    if tokenizer is None:
        return None
    return pieces(tokenizer, [step.get("tokens") or () for step in row["steps"]])


def _as_json(value: Row) -> str:
    """JSON that browsers read: NaN and infinity become null."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half of a surrogate pair
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))


def _check_host(host: str) -> None:
    name = host.rpartition(":")[0] if host[-1:].isdigit() else host
    if (name or host) not in HOSTS:
        raise web.HTTPMisdirectedRequest(text=REFUSED)


async def _asset(request: web.Request) -> web.Response:
    asset = ASSETS.get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound(text="There is no such page.\n")
    name, kind = asset
    text = files("evert.trainers.viewing").joinpath(name).read_text("utf-8")
    if name == "view.css":  # after the report's style
        text = files("evert.trainers.reporting").joinpath("style.css").read_text("utf-8") + text
    return web.Response(text=text, content_type=kind, charset="utf-8")
