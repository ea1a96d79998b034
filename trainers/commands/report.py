"""``evert report RUN [RUN ...]``: save the viewer's page for some runs, along with plots."""

from collections.abc import Sequence
from pathlib import Path

import chz

from evert.trainers.config.arguments import read_paths_and_settings, settings_help
from evert.trainers.config.fields import setting
from evert.trainers.config.prices import PriceSettings
from evert.trainers.reporting.run import ReportError, Run, no_run, read_run
from evert.trainers.system.command import run_command
from evert.trainers.system.files import write_whole

PAGE = "index.html"
USAGE = """\
Usage: evert report RUN [RUN ...] [key=value ...]

Saves the page that `evert view` shows for these runs or evaluations, and saves their plots as PNG
files. Runs don't have to be finished. The page is a single file of at most 16 MB, easy to share.

  evert report runs/NAME
  evert report runs/* out=comparison sample_price=1.5

"""


@chz.chz
class ReportSettings(PriceSettings):
    """Settings for ``evert report``."""

    out: str = setting("", "output folder (default: `report` in the first run's folder)")
    title: str = setting("", "page title (default: the names of the runs)")
    smooth: float = setting(0.6, "smoothing factor of the bold lines, at least 0 and less than 1")

    @chz.validate
    def _check(self) -> None:
        if not 0 <= self.smooth < 1:
            raise ReportError(f"smooth must be at least 0 and less than 1, got {self.smooth:g}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(_run, argv, lambda arguments: USAGE + settings_help(ReportSettings, {}))


def _run(arguments: Sequence[str]) -> None:
    page = write_report(*parse(arguments))
    print(f"report: {page}")
    print(f"plots: {len(list(page.parent.glob('*.png')))} PNG files in the same folder")


def parse(arguments: Sequence[str]) -> tuple[list[Path], ReportSettings]:
    """Parse the command line into the runs (without duplicates) and the settings."""
    paths, settings = read_paths_and_settings(ReportSettings, arguments)
    if not paths:
        raise ReportError("No run given. Pass the folder of a run, for example runs/NAME.")
    return paths, settings


def write_report(paths: Sequence[Path], settings: ReportSettings) -> Path:
    """Write the page and the plots to one folder, and return the path of the page."""
    runs = _read_runs(paths)

    from evert.trainers.reporting.drawing import draw_figures
    from evert.trainers.reporting.figures.style import MOST_LINES
    from evert.trainers.viewing import asking
    from evert.trainers.viewing.answers import Answers
    from evert.trainers.viewing.incremental_index import indexed
    from evert.trainers.viewing.report_page import saved_page

    if len(runs) > MOST_LINES:
        raise ReportError(
            f"Got {len(runs)} runs, but a plot can show at most {MOST_LINES}. Pass fewer runs, or "
            "create several reports."
        )
    out = Path(settings.out).expanduser() if settings.out else runs[0].path / "report"
    title = settings.title or " · ".join(dict.fromkeys(run.name for run in runs))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"The report cannot be written to {out}: {error.strerror or error}. Choose a "
            "different folder with out=."
        ) from error
    with indexed([run.path for run in runs]) as index:
        page = saved_page(Answers(index, settings.prices), title, settings.smooth)
        numbers = {path: number for number, path in index.runs.items()}
        stages = [asking.steps(index, numbers[run.path]) for run in runs]
    draw_figures(list(zip(runs, stages, strict=True)), settings.smooth, out)
    write_whole(out / PAGE, page)
    return out / PAGE


def _read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs. If several paths were given, skip the ones that aren't runs, and say so."""
    for path in paths:  # check first, because reading runs takes seconds
        if not path.exists():
            raise ReportError(no_run(path))
    runs = list[Run]()
    for path in paths:
        try:
            runs.append(read_run(path))
        except ReportError as error:
            if len(paths) == 1:
                raise
            print(f"skipped: {error}")
    if not runs:
        raise ReportError(f"None of the {len(paths)} paths is a run. Pass a run, like runs/NAME.")
    return runs
