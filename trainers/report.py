"""``evert report RUN [RUN ...]``: one HTML page, and its figures as PNG, of one or several runs.

The command lives here; what it is made of is in ``reporting/``.
"""

import difflib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evert.bridge.errors import EvertError
from evert.trainers.reporting.run import ReportError, Run, labels, read_run

PROGRAM = ("python", "-m", "evert.trainers.report")
PAGE = "index.html"
USAGE = """\
Usage: {program} RUN [RUN ...] [key=value ...]

Makes one HTML page of one or several run folders of `evert train`, finished or not, with its
figures as PNG files beside it. The page needs nothing else and can be sent to somebody.

  out=FOLDER         where to write it; default: the folder `report` in the first run's
  title=TEXT         of the page; default: the names of the runs
  smooth=0.6         how much of the past the bold lines hold, from 0 (nothing) to below 1
  prefill_price=     dollars per million tokens that the model is given,
  sample_price=        that it samples,
  train_price=         and that it is trained on; without prices no cost is shown

  {program} runs/NAME
  {program} runs/* out=comparison sample_price=1.5
"""
PRICES = ("prefill_price", "sample_price", "train_price")
KEYS = ("out", "title", "smooth", *PRICES)


@dataclass(frozen=True)
class Options:
    """What a report is made of."""

    runs: tuple[Path, ...]
    out: Path
    title: str | None
    """None: the names of the runs."""
    smooth: float
    prices: dict[str, float]
    """By the names in ``PRICES``; those that were given."""


def main(argv: Sequence[str] | None = None, program: Sequence[str] = PROGRAM) -> int:
    """Run the command.

    Args:
        argv: Run folders and ``key=value`` options; None for those of this process.
        program: What to call to run this command again.

    Returns:
        The exit status: 0, or 1 for what could not be done.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or {"--help", "-h"} & set(arguments):
        print(USAGE.format(program=" ".join(program)), end="")
        return 0 if arguments else 1
    try:
        options = parse(arguments)
        runs = [read_run(path) for path in options.runs]
        page, figures = write_report(runs, options)
    except EvertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"report: {page}")
    print(f"figures: {figures} PNG files beside it")
    return 0


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        ReportError: There is no run in it, no such option, or a value that cannot be.
    """
    given: dict[str, str] = {}
    folders: list[Path] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and not Path(argument).exists():
            if key not in KEYS:
                raise ReportError(_no_such_option(argument, key))
            given[key] = value
        else:
            folders.append(Path(argument).expanduser())
    runs = tuple({path.resolve(): path for path in folders}.values())
    _check_number_of(runs)
    return Options(
        runs=runs,
        out=Path(given["out"]).expanduser() if given.get("out") else runs[0] / "report",
        title=given.get("title") or None,
        smooth=_number("smooth", given.get("smooth", "0.6"), below=1.0),
        prices={key: _number(key, given[key]) for key in PRICES if key in given},
    )


def _no_such_option(argument: str, key: str) -> str:
    near = difflib.get_close_matches(key, KEYS, n=1)
    hint = f" Did you mean {near[0]}=?" if near else ""
    return f"Got {argument!r}, which is no option and no folder.{hint} Options: {', '.join(KEYS)}."


def _check_number_of(runs: Sequence[Path]) -> None:
    from evert.trainers.reporting.figures.style import MOST_LINES

    if not runs:
        raise ReportError("No run to report. Name the folder of a run, for example runs/NAME.")
    if len(runs) > MOST_LINES:
        raise ReportError(
            f"Got {len(runs)} runs; a figure can tell {MOST_LINES} apart. Name fewer, or make "
            "several reports."
        )


def _number(key: str, text: str, below: float = math.inf) -> float:
    """A number from 0 to below a bound.

    Raises:
        ReportError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < below:
        bound = f" and below {below:g}" if below < math.inf else ""
        raise ReportError(f"{key} must be a number from 0{bound}, got {text!r}.")
    return value


def write_report(runs: Sequence[Run], options: Options) -> tuple[Path, int]:
    """Write the page and its figures.

    Args:
        runs: What is reported.
        options: Where to, and how.

    Returns:
        Where the page is, and how many figures are beside it.

    Raises:
        ReportError: It cannot be written.
    """
    from evert.trainers.reporting.figures.style import write
    from evert.trainers.reporting.page import render
    from evert.trainers.reporting.sections import Report
    from evert.trainers.reporting.tokens import Prices, count_tokens

    report = Report(
        runs=runs,
        labels=labels(runs),
        tokens=[count_tokens(run) for run in runs],
        prices=Prices(*(options.prices.get(key) for key in PRICES)),
        smooth=options.smooth,
        out=options.out,
    )
    title = options.title or " · ".join(dict.fromkeys(run.name for run in runs))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        page, figures = render(report, title)
        write(options.out / PAGE, page)
    except OSError as error:
        raise ReportError(
            f"The report cannot be written to {options.out}: {error.strerror or error}. Name "
            "another folder with out=."
        ) from error
    return options.out / PAGE, figures


if __name__ == "__main__":
    sys.exit(main())
