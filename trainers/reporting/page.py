"""A report's page: ``render`` puts everything into one HTML file that needs nothing else.

Figures are embedded, the style is inline, there is no script, and a content security policy in the
page forbids the browser to load anything. Transcripts are untrusted: the template escapes
whatever is put into it, and what cannot be printed, an agent's escape sequences among it, is shown
as such.
"""

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

import evert
from evert.trainers.reporting.figures.style import COLOURS
from evert.trainers.reporting.formatting import score
from evert.trainers.reporting.overview import card, facts, settings
from evert.trainers.reporting.sections import Report, sections
from evert.trainers.reporting.transcripts import (
    EPISODES,
    STEPS,
    Column,
    held_out_episodes,
    training_episodes,
)

TEMPLATE = "report.html.j2"
MOST_CHARACTERS = 6_000
"""Of an episode."""
ALL_CHARACTERS = 150_000
"""Of all episodes together: escaped, a character may take five."""
STACKED_FROM = 5
"""Runs from which on tables are stacked, as they are on a phone."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Transcripts:
    """A run's episodes to read."""

    label: str
    held_out: list[Column]
    training: list[Column]


def render(report: Report, title: str) -> tuple[bytes, int]:
    """Make the page, and its figures in the report's folder.

    Returns:
        The page, and how many figures it has.

    Raises:
        OSError: The figures cannot be written.
    """
    made = sections(report)
    each = zip(report.runs, report.labels, report.tokens, strict=True)
    html = _environment(report.out).get_template(TEMPLATE).render(
        title=title,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        labels=report.labels,
        cards=[card(run, label, tokens, report.prices) for run, label, tokens in each],
        colours=COLOURS,
        stacked=len(report.runs) >= STACKED_FROM,
        facts=facts(report.runs),
        settings=settings(report.runs),
        sections=made,
        version=evert.__version__,
        transcripts=_transcripts(report),
    )  # fmt: skip
    page = _UNPRINTABLE.sub("\ufffd", html).encode("utf-8", "replace")
    return page, sum(len(section.figures) for section in made)


def _transcripts(report: Report) -> list[Transcripts]:
    boxes = len(report.runs) * EPISODES * (STEPS + 2)
    most = min(MOST_CHARACTERS, ALL_CHARACTERS // boxes)
    return [
        Transcripts(label, held_out_episodes(run, most), training_episodes(run, most))
        for run, label in zip(report.runs, report.labels, strict=True)
    ]


def _environment(folder: Path) -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )

    def embedded(file: str) -> str:
        png = base64.b64encode((folder / file).read_bytes()).decode("ascii")
        return f"data:image/png;base64,{png}"

    environment.filters |= {"score": score, "embedded": embedded}
    return environment


def _template(name: str) -> str:
    return resources.files("evert.trainers.reporting").joinpath(name).read_text(encoding="utf-8")
