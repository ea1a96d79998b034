"""The page's server: it answers requests that have the link's token, in JSON, from the index.

It listens on this machine alone. The page keeps the link's token and sends it with each request; a
cookie would go to every server on this machine, also to those of other users. A request that names
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
from evert.trainers.viewing.lines import WRONG, Row, shown
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
"""Header: of the index that answered."""
LOOKS = 1.0, 10.0
"""Least and most seconds between two looks at the files."""


class Viewer:
    """Answers requests from an index, which it keeps up to date while the page is open."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.token = secrets.token_urlsafe(24)
        self._asked, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="evert-view", daemon=True)
        self._trouble = ""
        self._reader = ThreadPoolExecutor(1, "evert-view-reader")

    def start(self) -> None:
        """Start to look at the files."""
        self._asked.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, and close the index."""
        self._stopped.set()
        self._asked.set()
        self._thread.join()
        self._reader.shutdown()
        self.index.close()

    def _keep_up(self) -> None:
        while self._asked.wait() and not self._stopped.is_set():
            self._asked.clear()
            before = time.thread_time()
            try:
                self.index.look(self._stopped)
                self._trouble = ""
            except Exception as error:  # a full disk, say: the next look may succeed
                self._trouble = f"{type(error).__name__}: {error}"
            least, most = LOOKS
            self._stopped.wait(min(most, max(least, PATIENCE * (time.thread_time() - before))))

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/api/{name}", self._api)
        app.router.add_get("/{name:[^/]*}", _asset)
        return app

    @web.middleware
    async def _guarded(
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
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            raise web.HTTPForbidden(text=REFUSED)
        answer = ANSWERS.get(request.match_info["name"])
        if answer is None:
            raise web.HTTPNotFound(text="There is no such page.\n")
        self._asked.set()
        loop, version = asyncio.get_running_loop(), self.index.version
        body, spent = await loop.run_in_executor(
            self._reader, self._answered, answer, request.query
        )
        headers = {AGAIN: f"{min(30.0, PATIENCE * spent):.2f}", VERSION: str(version)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _answered(self, answer: "Answer", asked: Mapping[str, str]) -> tuple[bytes, float]:
        before = time.thread_time()
        try:
            found = answer(self, asked)
        except (*WRONG, OSError, sqlite3.Error):  # a file has changed, say
            raise web.HTTPNotFound(text="It does not exist, or no longer exists.\n") from None
        text = redacted(_as_json(found)).encode("utf-8", "replace")
        return text, time.thread_time() - before

    # -- the answers -----------------------------------------------------------------------------

    def state(self, asked: Mapping[str, str]) -> Row:
        """Return the index's version, the bytes that are not read yet, and what went wrong."""
        index = self.index
        troubles = [*index.troubles.values(), self._trouble]
        trouble = next(filter(None, troubles), "")
        return {"version": index.version, "behind": index.behind, "trouble": trouble}

    def all_runs(self, asked: Mapping[str, str]) -> Row:
        """Return all runs, the last written first."""
        counts = asking.counts(self.index)
        found = [self._overview(run, counts) for run in self.index.runs]
        found.sort(key=lambda of: of["written"], reverse=True)
        return {"runs": found, "colours": COLOURS}

    def _overview(self, run: int, counts: Mapping[int, Row]) -> Row:
        none = {"id": run, "episodes": 0, "recorded": 0, "broken": 0}
        return none | counts.get(run, {}) | runs.overview(*self._folder(run))

    def _folder(self, run: int) -> tuple[Path, object]:
        """A run's folder, with the stamps of its files."""
        return self.index.runs[run], self.index.facts.get(run)

    def one_run(self, asked: Mapping[str, str]) -> Row:
        """Return a run: its figures, its steps."""
        run = self._run(asked)
        rows = runs.rows_of(*self._folder(run))
        of = self._overview(run, asking.counts(self.index))
        of |= runs.figures(self.index.runs[run], rows) | {"colours": COLOURS}
        return of | {"stages": asking.steps(self.index, run)}

    def metric(self, asked: Mapping[str, str]) -> Row:
        """Return a metric of a run by step."""
        run = self._run(asked)
        return runs.metric(runs.rows_of(*self._folder(run)), asked["key"])

    def step(self, asked: Mapping[str, str]) -> Row:
        """Return the episodes of a step."""
        run, split, model, step = (
            self._run(asked), asked["split"], asked["model"], int(asked["step"]),
        )  # fmt: skip
        found = asking.episodes(self.index, run, split, model, step)
        return {"run": run, "name": self.index.runs[run].name, "episodes": found}

    def episode(self, asked: Mapping[str, str]) -> Row:
        """Return an episode, with its group and its neighbours."""
        entry, line = asking.episode(self.index, int(asked["id"]))
        row, run = shown(line, entry["part"]), self.index.runs[entry["run"]]
        beside = asking.episodes(
            self.index, entry["run"], entry["split"], entry["model"], entry["step"]
        )
        group = [each for each in beside if _group(each) == _group(entry)]
        texts = _pieces(row, run)
        return {
            "entry": entry, "row": row, "name": run.name, "pieces": texts, "group": group,
            "step": [each["id"] for each in beside if each["kind"] == entry["kind"]],
            "same": asking.same_task(self.index, entry),
        }  # fmt: skip

    def search(self, asked: Mapping[str, str]) -> Row:
        """Return the episodes that contain some words."""
        runs_, found = self.index.runs, asking.search(self.index, asked["words"])
        there = [each | {"name": runs_[each["run"]].name} for each in found if each["run"] in runs_]
        return {"episodes": there}

    def _run(self, asked: Mapping[str, str]) -> int:
        run = int(asked["run"])
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
    found = ASSETS.get(request.match_info["name"])
    if found is None:
        raise web.HTTPNotFound(text="There is no such page.\n")
    name, kind = found
    text = files("evert.trainers.viewing").joinpath(name).read_text("utf-8")
    if name == "view.css":  # after the report's style
        text = files("evert.trainers.reporting").joinpath("style.css").read_text("utf-8") + text
    return web.Response(text=text, content_type=kind, charset="utf-8")
