"""The page's API: answers the page's queries from the index, as JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson

from evert.bridge.redaction import redacted
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.run import Run
from evert.trainers.viewing import asking, runs
from evert.trainers.viewing.incremental_index import Index
from evert.trainers.viewing.lines import Row, page_row
from evert.trainers.viewing.pieces import load_tokenizer, pieces, tokenizer_file
from evert.trainers.viewing.tokens import count_tokens

PAGE = "page.html"
ASSETS = {
    PAGE: "text/html",
    "view.js": "text/javascript",
    "uplot.js": "text/javascript",
    "uplot.css": "text/css",
    "view.css": "text/css",
}
"""The page's files and their content types."""


@dataclass(frozen=True)
class Answers:
    """Answers queries from an index. ``prices`` are in dollars per million tokens.

    If a query is invalid, or its data no longer exists, one of ``WRONG``, an OSError or a
    ``sqlite3.Error`` is raised.
    """

    index: Index
    prices: Mapping[str, float]

    def all_runs(self, query: Mapping[str, str]) -> Row:
        """Return all runs, most recently written first."""
        counts = asking.counts(self.index)
        overviews = [self._overview(run, counts) for run in self.index.runs]
        overviews.sort(key=lambda overview: overview["written"], reverse=True)
        return {"runs": overviews, "colours": COLOURS}

    def one_run(self, query: Mapping[str, str]) -> Row:
        """Return the plots and steps of a run."""
        number = self._number(query)
        run, stages = self._read(number), asking.steps(self.index, number)
        tokens = count_tokens(run, self.index, number)
        return {
            **self._overview(number, asking.counts(self.index)),
            **runs.figures(run, stages),
            "tokens": runs.token_texts(tokens, self.prices),
            "stages": stages,
            "colours": COLOURS,
        }

    def metric(self, query: Mapping[str, str]) -> Row:
        """Return a metric by step."""
        return runs.points(self._read(self._number(query)).curve(query["key"]))

    def step(self, query: Mapping[str, str]) -> Row:
        """Return the episodes of a step."""
        run, split, model, step = (
            self._number(query), query["split"], query["model"], int(query["step"]),
        )  # fmt: skip
        episodes = asking.episodes(self.index, run, split, model, step)
        return {"run": run, "name": self.index.runs[run].name, "episodes": episodes}

    def episode(self, query: Mapping[str, str]) -> Row:
        """Return an episode, its group, and the other episodes of its step."""
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
        """Return the episodes that contain the search words."""
        runs_, matches = self.index.runs, asking.search(self.index, query["words"])
        episodes = [
            entry | {"name": runs_[entry["run"]].name} for entry in matches if entry["run"] in runs_
        ]
        return {"episodes": episodes}

    def _number(self, query: Mapping[str, str]) -> int:
        number = int(query["run"])
        if number not in self.index.runs:
            raise KeyError(number)
        return number

    def _overview(self, number: int, counts: Mapping[int, Row]) -> Row:
        empty = {"id": number, "episodes": 0, "recorded": 0, "broken": 0}
        row = runs.overview(self.index.runs[number], self.index.facts.get(number))
        return empty | counts.get(number, {}) | row

    def _read(self, number: int) -> Run:
        return runs.read(self.index.runs[number], self.index.facts.get(number))


Answer = Callable[[Answers, Mapping[str, str]], Row]
ANSWERS: Mapping[str, Answer] = {
    "runs": Answers.all_runs,
    "run": Answers.one_run,
    "metric": Answers.metric,
    "step": Answers.step,
    "episode": Answers.episode,
    "search": Answers.search,
}


def _group(entry: Row) -> tuple[str, int, str]:
    return entry["kind"], entry["grp"], entry["seat"]


def _pieces(row: Row, run: Any) -> list[list[str]] | None:
    """Return the texts of each turn's tokens, or None if the tokenizer is not available."""
    name = row.get("tokenizer")
    file = tokenizer_file(name, run) if isinstance(name, str) else None
    tokenizer = load_tokenizer(file) if file else None
    if tokenizer is None:
        return None
    return pieces(tokenizer, [step.get("tokens") or () for step in row["steps"]])


def as_json(value: Row | str) -> str:
    """Return JSON for browsers, with known secrets redacted. NaN and infinity become null."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # lone surrogate
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
    return redacted(text)


def asset(name: str) -> str:
    """Return the content of one of the ``ASSETS``."""
    return files("evert.trainers.viewing").joinpath(name).read_text("utf-8")
