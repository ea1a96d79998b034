"""A report's page: ``render`` puts everything into one HTML file that needs nothing else.

Figures are embedded, the style is inline, there is no script, and a content security policy in the
page forbids the browser to load anything. Transcripts are untrusted: the template escapes
whatever is put into it.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

import evert
from evert.trainers.reporting.figures.panels import RUN_COLOURS
from evert.trainers.reporting.run import Run
from evert.trainers.reporting.sections import (
    Section,
    card,
    facts,
    sections,
    settings,
)
from evert.trainers.reporting.text import score
from evert.trainers.reporting.tokens import Prices, count_tokens
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


@dataclass(frozen=True)
class Page:
    """A page, and the sections whose figures it embeds."""

    html: bytes
    sections: list[Section]


def render(
    runs: Sequence[Run], labels: Sequence[str], *, title: str, smooth: float, prices: Prices
) -> Page:
    """Make the page.

    Args:
        runs: What is reported, in the order of the page.
        labels: A name for each.
        title: Of the page.
        smooth: Weight of the past in bold lines, from 0 to below 1.
        prices: Dollars per million tokens.
    """
    counted = [count_tokens(run) for run in runs]
    made = sections(runs, labels, smooth, counted, prices)
    html = _environment().get_template(TEMPLATE).render(
        title=title,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        labels=labels,
        cards=[card(*each, prices) for each in zip(runs, labels, counted, strict=True)],
        colours=RUN_COLOURS,
        stacked=len(runs) >= STACKED_FROM,
        facts=facts(runs),
        settings=settings(runs),
        sections=made,
        version=evert.__version__,
        transcripts=_transcripts(runs, labels),
    )  # fmt: skip
    return Page(_UNPRINTABLE.sub("\ufffd", html).encode("utf-8", "replace"), made)


def _transcripts(runs: Sequence[Run], labels: Sequence[str]) -> list[Transcripts]:
    boxes = len(runs) * EPISODES * (STEPS + 2)
    most = min(MOST_CHARACTERS, ALL_CHARACTERS // boxes)
    return [
        Transcripts(label, held_out_episodes(run, most), training_episodes(run, most))
        for run, label in zip(runs, labels, strict=True)
    ]


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.filters["score"] = score
    environment.filters["data_uri"] = _data_uri
    return environment


def _template(name: str) -> str:
    return resources.files("evert.trainers.reporting").joinpath(name).read_text(encoding="utf-8")


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
