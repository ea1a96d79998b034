"""Evaluate models on a game or an agent: ``evert evaluate env=twenty_questions models=...``.

Every model plays every task several times; the table has the success rate with its 95 % interval by
model and split, and the folder

    evaluation.json                 what was evaluated, with versions
    episodes.jsonl                  every episode, written when it is over
    scores.csv                      by model, split and category
    splits.png  categories.png      the same as bars

An evaluation that was interrupted goes on where it stopped (``out=FOLDER``), and ends with the same
table: each episode is drawn from a seed of its own. The parts are in ``evaluation/``.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import chz
import openai
from chz.blueprint import EntrypointHelpException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evert.bridge.errors import EvertError
from evert.bridge.group import load_agent
from evert.trainers.evaluation import scores
from evert.trainers.evaluation.contestants import Contestant, find
from evert.trainers.evaluation.episodes import Episode, EpisodeLog, Planned, planned, play
from evert.trainers.evaluation.settings import EvaluateSettings
from evert.trainers.reporting.figures.bars import draw_categories, draw_splits
from evert.trainers.reporting.figures.style import save
from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.folder import RunFolder, RunFolderError
from evert.trainers.runs.settings import slug

PROGRAM = ("python", "-m", "evert.trainers.evaluate")
EVALUATION, SCORES = "evaluation.json", "scores.csv"
SPLITS_FIGURE, CATEGORIES_FIGURE = "splits.png", "categories.png"
INTERRUPTED = 130

MAY_CHANGE = frozenset({"models", "seeds", "parallel", "device", "threads", "out"})
"""Settings with which an evaluation may go on: they leave what was played as it is."""


class EvaluationError(EvertError, RuntimeError):
    """An evaluation stopped on the way; what was played is kept."""


# -- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None, program: Sequence[str] = PROGRAM) -> int:
    """Run the command.

    Args:
        argv: ``key=value`` settings; None for those of this process.
        program: What to call to run this command again.

    Returns:
        The exit status: 0, 1 for what could not be done, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    console = Console(highlight=False)
    folder: Path | None = None
    try:
        settings = parse(arguments)
        contestants = [find(name, settings) for name in settings.models]
        check(settings, contestants)
        folder = open_folder(settings)
        evaluate(settings, contestants, folder, console)
        return 0
    except EntrypointHelpException as shown:
        print(str(shown).rstrip())
        return 0
    except KeyboardInterrupt:
        console.print("\nInterrupted.", _to_go_on(folder, program), soft_wrap=True, markup=False)
        return INTERRUPTED
    except Exception as error:
        if not isinstance(error, EvertError) and not type(error).__module__.startswith("chz."):
            raise
        said = f"error: {str(error).rstrip()} {_to_go_on(folder, program)}"
        print(said.rstrip(), file=sys.stderr)
        return 1


def _to_go_on(folder: Path | None, program: Sequence[str]) -> str:
    if folder is None:
        return ""
    return f"What was played is kept; to go on: {' '.join(program)} out={folder}"


def parse(arguments: Sequence[str]) -> EvaluateSettings:
    """Read ``key=value`` arguments, over the settings of the evaluation to go on with.

    Raises:
        RecipeError: There is no such game, or a value is out of range.
        EntrypointHelpException: ``--help`` was asked for; its text is the help.
    """
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    blueprint = chz.Blueprint(EvaluateSettings)
    if recorded := _recorded(Path(given.get("out", ""))):
        blueprint = blueprint.apply(recorded, layer_name="the evaluation to go on with")
    return blueprint.make_from_argv(list(arguments))


def _recorded(folder: Path) -> dict[str, Any]:
    found = run_folder.read_json(folder / EVALUATION) or {}
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in (found.get("settings") or {}).items()
        if key in chz.chz_fields(EvaluateSettings)
    }


def check(settings: EvaluateSettings, contestants: Sequence[Contestant]) -> None:
    """Find what would stop an evaluation before there is one: a path that leads nowhere, mostly.

    Raises:
        EvertError: The tasks or an agent cannot be found.
    """
    settings.tasks()
    for contestant in contestants:
        load_agent(contestant.agent)


def open_folder(settings: EvaluateSettings) -> Path:
    """Make the folder of a new evaluation, or open that of one to go on with.

    Raises:
        RunFolderError: It holds something else, or an evaluation of something else.
    """
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = Path(settings.out or Path("evaluations") / f"{slug(settings.name)}-{stamp}").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        strange = any(path.iterdir()) and not (path / EVALUATION).is_file()
    except OSError as error:
        raise run_folder.cannot_write(path, error) from error
    if strange:
        raise RunFolderError(f"{path} is not empty, and no evaluation. Choose another out=.")
    now, before = chz.asdict(settings), _recorded(path)
    changed = [key for key in before if key not in MAY_CHANGE and before[key] != now[key]]
    if changed:
        raise RunFolderError(
            f"{path} holds an evaluation with other settings:\n  "
            + "\n  ".join(f"{key}: {before[key]!r} -> {now[key]!r}" for key in changed)
            + "\nTo go on with it leave these out; else choose another out=."
        )
    return path


# -- the evaluation ------------------------------------------------------------------------------


def evaluate(
    settings: EvaluateSettings, contestants: Sequence[Contestant], path: Path, console: Console
) -> list[scores.Score]:
    """Play what is not on record, and show how it went.

    Args:
        settings: What to evaluate.
        contestants: Who plays, one after the other.
        path: The evaluation's folder.
        console: Where to show it.

    Returns:
        The scores by model and split.

    Raises:
        EvertError: It could not be done; what was played is on record.
        KeyboardInterrupt: Ctrl-C; the same.
    """
    tasks = settings.tasks()
    folder = RunFolder(path, resumed=True)
    with run_folder.alone_in(path, "evaluating", "out"):
        description = {"settings": chz.asdict(settings), "versions": run_folder.versions()}
        folder.write_json(EVALUATION, {**description, "git": run_folder.git_revision()})
        log = EpisodeLog(path)
        console.print(f"evaluation: {path}", soft_wrap=True, markup=False)
        seeds, played = range(settings.seed, settings.seed + settings.seeds), list[Episode]()
        for contestant in contestants:
            wanted = planned(contestant.name, contestant.digest, tasks, seeds)
            todo = [episode for episode in wanted if episode.key not in log.by_key]
            _play(contestant, todo, log, console)
            # On record under another name, if the same weights had one.
            played += [replace(log.by_key[e.key], model=e.model) for e in wanted]
        return _report(played, settings, folder, console)


def _play(
    contestant: Contestant, todo: Sequence[Planned], log: EpisodeLog, console: Console
) -> None:
    if not todo:
        return
    began, settings = time.monotonic(), contestant.settings

    def say(line: str) -> None:
        console.print(f"{contestant.name}: {line}", soft_wrap=True, markup=False)

    with contestant.ready(say) as player, _progress(contestant, todo, console) as done:
        playing = play(
            todo, player, log.add, done, success=settings.success, parallel=settings.parallel
        )
        try:
            asyncio.run(playing)
        except openai.OpenAIError as error:
            raise EvaluationError(
                f"{contestant.name}: the endpoint does not answer as it should: "
                f"{type(error).__name__}: {error}. Check base_url, {settings.api_key_env} and the "
                "model's name."
            ) from error
    say(f"{len(todo)} episodes in {time.monotonic() - began:.0f} s")


@contextmanager
def _progress(
    contestant: Contestant, todo: Sequence[Planned], console: Console
) -> Iterator[Callable[[Episode], None]]:
    """Shows how far a model is: a bar on a terminal, a line now and then elsewhere."""
    won = count = 0
    every = max(1, -(-len(todo) // 5))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)

    def done(episode: Episode) -> None:
        nonlocal won, count
        won, count = won + episode.success, count + 1
        found = f"{won} successes"  # no rate: those that are over first are the short ones
        bar.update(task, advance=1, found=found)
        if not console.is_terminal and count % every == 0:
            console.print(f"{contestant.name}: {count}/{len(todo)}  {found}", soft_wrap=True)

    with bar:
        task = bar.add_task(contestant.name, total=len(todo), found="")
        yield done


def _report(
    episodes: Sequence[Episode], settings: EvaluateSettings, folder: RunFolder, console: Console
) -> list[scores.Score]:
    splits = scores.scores(episodes, scores.by_split)
    totals = scores.scores(episodes, scores.by_model)
    categories = scores.scores([e for e in episodes if e.category], scores.by_category)
    both = [row for total in totals for row in (*_of(total.model, splits), total)]
    shown = both if len({row.split for row in splits}) > 1 else splits
    title = f"{settings.name}: {settings.seeds} episodes a task"
    title += f", temperature {settings.temperature:g}" + ", with search" * settings.search
    console.print(title, soft_wrap=True, markup=False)
    console.print(scores.as_table(shown))
    folder.write(SCORES, scores.as_csv([*shown, *categories]))
    save(draw_splits(title, splits), folder.path / SPLITS_FIGURE)
    files = [SCORES, SPLITS_FIGURE]
    if categories:
        save(draw_categories(title, categories), folder.path / CATEGORIES_FIGURE)
        files.append(CATEGORIES_FIGURE)
    console.print(f"{folder.path}: {', '.join(files)}", soft_wrap=True, markup=False)
    return splits


def _of(model: str, rows: Sequence[scores.Score]) -> list[scores.Score]:
    return [row for row in rows if row.model == model]


if __name__ == "__main__":
    sys.exit(main())
