"""Renders a report as one HTML file that needs nothing else.

Figures are embedded, the style is inline, there is no script, and a content security policy in the
page forbids the browser to load anything. Transcripts are untrusted: the template escapes all
values, and control characters, such as an agent's escape sequences, are replaced.
"""

import base64
import re
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

import evert
from evert.bridge.redaction import redacted
from evert.trainers.reporting.figures import formatting
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.metrics import TRAIN
from evert.trainers.reporting.panels import own_metrics
from evert.trainers.reporting.run import SUCCESS_NAMES
from evert.trainers.reporting.sections import Report, facts, metric_names, sections, settings
from evert.trainers.reporting.tokens import cost
from evert.trainers.reporting.transcripts import held_out_episodes, training_episodes

TEMPLATE = "report.html.j2"
STACKED_FROM = 5
"""With this many runs, tables are stacked, as on a phone."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def render(report: Report, title: str) -> bytes:
    """Make the page, and its figures in the report's folder."""
    names = metric_names(report.runs, "")
    costs = [tokens and cost(tokens, report.prices) for tokens in report.tokens]
    html = _environment(report).get_template(TEMPLATE).render(
        title=title,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        version=evert.__version__,
        report=report,
        labels=report.labels,
        cards=list(zip(report.runs, report.labels, report.tokens, costs, strict=True)),
        colours=COLOURS,
        stacked=len(report.runs) >= STACKED_FROM,
        facts=facts(report.runs),
        settings=settings(report.runs),
        sections=sections(report),
        success=[name for name in metric_names(report.runs, TRAIN) if name in SUCCESS_NAMES],
        causes=metric_names(report.runs, f"{TRAIN}drift/"),
        notes=[metric.about for metric in own_metrics(names).values() if metric.about],
        held_out=[held_out_episodes(run) for run in report.runs],
        training=[training_episodes(run) for run in report.runs],
    )  # fmt: skip
    return redacted(_UNPRINTABLE.sub("\ufffd", html)).encode("utf-8", "replace")


def _environment(report: Report) -> Environment:
    def embedded(file: str) -> str:
        png = base64.b64encode((report.out / file).read_bytes())
        return f"data:image/png;base64,{png.decode('ascii')}"

    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    loader = PackageLoader("evert.trainers.reporting", ".")
    environment = Environment(autoescape=True, loader=loader, **options)
    filters = (formatting.score, formatting.count, formatting.duration, formatting.dollars)
    environment.filters |= {
        function.__name__: function for function in (*filters, formatting.parts, embedded)
    }
    return environment
