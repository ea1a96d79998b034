"""``saved_page``: the viewer's page and its data as a single self-contained file.

Scripts and styles are inlined. The content security policy lists their hashes, allows no other
scripts or styles, and blocks all requests. The page does not need a server, because the server's
answers are embedded as JSON. Untrusted text in the answers is escaped so that it cannot close the
script tag.
"""

import base64
import hashlib
import html
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import evert
from evert.bridge.redaction import redacted
from evert.trainers.reporting.run import ReportError
from evert.trainers.viewing import asking
from evert.trainers.viewing.answers import ANSWERS, PAGE, Answers, as_json, asset
from evert.trainers.viewing.lines import SUMMARY, WRONG, Row

LARGEST = 16 * 2**20
"""Maximum size of a page in bytes."""
STEPS, EPISODES = 3, 6
"""Maximum number of steps per run, and of episodes per step, to include."""
MOST_STAGES = 500
"""Maximum number of steps to list for a run."""
HOLDS = f"""the first, middle and last step of each run, and {EPISODES} episodes of each of these \
steps: the worst, the best, and the first of the others"""
POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {}; \
style-src {}; img-src data:; base-uri 'none'; form-action 'none'">"""
DATA = '<script type="application/json" id="saved">{}</script>'
ASSET = r'<script src="(.+?)"></script>|<link rel="stylesheet" href="(.+?)">'
OVERHEAD = 200
"""Upper bound on the length of an answer's name."""
_UNPRINTABLE = re.compile("[\x7f-\x9f]")
"""Control characters that JSON does not escape, such as those that start terminal sequences."""


def saved_page(answers: Answers, title: str, smooth: float) -> bytes:
    """Return the page for all runs in an index, with as many episodes as fit in ``LARGEST`` bytes.

    Args:
        answers: Answers the queries that the page would otherwise send to the server.
        title: Title of the page.
        smooth: Smoothing factor of the bold lines, at least 0 and less than 1.

    Raises:
        ReportError: The page exceeds the size limit, even without any episodes.
    """
    runs = [*answers.index.runs]
    texts = {"runs": _json(answers.all_runs({}))}
    for run in runs:
        row = answers.one_run({"run": str(run)})
        row |= {"more": [], "stages": row["stages"][-MOST_STAGES:]}
        texts[f"run/{run}"] = _json(row)
    about: Row = {
        "title": title,
        "smooth": smooth,
        "home": "/".join(["runs" if len(runs) > 1 else "run", *map(str, runs)]),
        "written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "version": evert.__version__,
        "holds": HOLDS,
        "omitted": 0,
    }
    room = LARGEST - OVERHEAD - len(_page(about, texts))
    if room < 0:
        raise ReportError(
            f"The page would be larger than {LARGEST >> 20} MB, even without episodes. Pass fewer "
            "runs."
        )
    for name, query in _choices(answers):
        with suppress(*WRONG, OSError, sqlite3.Error):  # for example, a file has changed
            text = _json(ANSWERS[name](answers, query))
            size = len(text.encode()) + OVERHEAD
            if size <= room:
                room -= size
                texts["/".join([name, *query.values()])] = text
            else:
                about["omitted"] += 1
    return _page(about, texts)


def _choices(answers: Answers) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the queries to include: all steps, then the episodes in order of importance."""
    steps = [step for run in answers.index.runs for step in _steps(answers, run)]
    yield from (("step", step) for step in steps)
    ids = [_episodes(answers, step) for step in steps]
    for rank in range(EPISODES):
        yield from (("episode", {"id": str(of[rank])}) for of in ids if rank < len(of))


def _steps(answers: Answers, run: int) -> Iterator[dict[str, str]]:
    series = defaultdict[tuple[str, str], list[Row]](list)
    for stage in asking.steps(answers.index, run):
        series[stage["split"], stage["model"]].append(stage)
    for (split, model), stages in series.items():
        for place in sorted({round(i * (len(stages) - 1) / (STEPS - 1)) for i in range(STEPS)}):
            step = str(stages[place]["step"])
            yield {"run": str(run), "split": split, "model": model, "step": step}


def _episodes(answers: Answers, step: dict[str, str]) -> list[int]:
    """Return the ids of a step's worst, best and first episodes (only recorded ones, if any)."""
    rows = answers.step(step)["episodes"]
    rows = [row for row in rows if row["kind"] != SUMMARY] or rows
    by_reward = sorted(rows, key=lambda row: float(row["reward"]))
    ids = dict.fromkeys(row["id"] for row in [*by_reward[:1], *by_reward[-1:], *rows])
    return [*ids][:EPISODES]


def _json(value: Row | str) -> str:
    """Return JSON that is safe to embed in HTML, because it cannot contain tags."""
    return _UNPRINTABLE.sub("\ufffd", as_json(value)).replace("<", "\\u003c")


def _page(about: Row, texts: dict[str, str]) -> bytes:
    answers = ",".join(f"{_json(key)}:{text}" for key, text in texts.items())
    data = f'{{"about":{_json(about)},"answers":{{{answers}}}}}'
    hashes = defaultdict[str, list[str]](list)

    def inline(match: re.Match[str]) -> str:
        text, tag = asset(match[1] or match[2]), "script" if match[1] else "style"
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    page = re.sub(ASSET, inline, asset(PAGE))
    policy = POLICY.format(" ".join(hashes["script"]), " ".join(hashes["style"]))
    parts = {
        '<meta charset="utf-8">': policy,
        "<title>": html.escape(redacted(about["title"])),
        "</main>": DATA.format(data),
    }
    for place, text in parts.items():  # inserts the data last, so that nothing in it is replaced
        page = page.replace(place, f"{place}\n{text}", 1)
    return page.encode("utf-8", "replace")
