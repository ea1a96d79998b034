"""``evert evaluate env=twenty_questions models=...``: evaluate models on a game or an agent.

Every model plays every task several times. The output folder contains:

    evaluation.json                 settings and package versions
    episodes.jsonl                  all episodes
    rollouts.jsonl                  the tokens of all episodes (only with record=True)
    scores.csv                      scores by model, split and category
    splits.png  categories.png      bar charts of the scores
    pass_at.png                     pass@k for each k (only with pass_at=)

Each episode has its own seed, so ``out=FOLDER`` can resume an interrupted evaluation.
"""

import shlex
import textwrap
import time
from asyncio import Semaphore
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz
from rich.console import Console

from evert.bridge.errors import EvertError
from evert.bridge.redaction import redacted
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.commands import evaluate_all
from evert.trainers.config.arguments import read_pairs
from evert.trainers.config.early_checks import texts_as_tasks
from evert.trainers.config.evaluate import (
    EvaluateSettings,
    playing_help,
    read_evaluate_settings,
)
from evert.trainers.config.fields import at_a_time
from evert.trainers.config.plan import PlayingPlan, prepare
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.command import run_async, run_command
from evert.trainers.system.files import EVALUATION, SCORES, RunFolderError
from evert.trainers.system.provenance import origin

if TYPE_CHECKING:
    from evert.trainers.episodes.players import Contestant
    from evert.trainers.episodes.playing import EpisodeLog, EpisodeResult, PlannedEpisode

SHOWN = 3
"""How many tasks per model to show below the table, each with the model's reply."""
SPLITS_FIGURE, CATEGORIES_FIGURE, PASS_AT_FIGURE = "splits.png", "categories.png", "pass_at.png"

USAGE = """\
Usage: evert evaluate models=NAME[,NAME...] env=GAME [key=value ...]

  evert evaluate env=twenty_questions models=evert-tiny-20q,runs/NAME,runs/NAME@20,oracle
  evert evaluate agent=my_module:agent test_tasks=my_module:TASKS models=runs/NAME
  evert evaluate env=identity models=openai:gpt-5-mini temperature=0
  evert evaluate env=identity models=vllm:http://127.0.0.1:8000/v1 model_name=Qwen/Qwen3-8B
  evert evaluate agent=... test_tasks=... models=runs/NAME policy_names=gpt-4o models.user=openai:M
  evert evaluate env=tic_tac_toe models=runs/NAME opponent=perfect split=test
  evert evaluate tasks=all-offline models=runs/NAME   all tasksets that work offline
  evert evaluate out=evaluations/NAME      resume an interrupted evaluation

Settings and their values:
"""

KEYS = chz.chz_fields(EvaluateSettings).keys() - {"frozen"}  # users pass these as models.NAME=
MAY_CHANGE = frozenset(
    {"models", "seeds", "pass_at", "parallel", "record", "device", "threads", "out"}
    | {"base_url", "api_key_env"}  # recorded without passwords, so digests are compared instead
)
"""Settings that may change on resume without invalidating the finished episodes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(_run, argv, _usage)


def _usage(arguments: Sequence[str]) -> str:
    return USAGE + playing_help(EvaluateSettings, read_pairs(arguments, KEYS, "env"))


def _run(arguments: Sequence[str]) -> int:
    pairs = read_pairs(arguments, KEYS, "env")
    recorded = run_folder.recorded_settings(pairs.get("out", ""), EvaluateSettings, EVALUATION)
    if evaluate_all.ALL in (pairs.get("tasks"), recorded.get("tasks")):
        return _run_all({**evaluate_all.recorded_arguments(pairs.get("out")), **pairs})
    settings = read_evaluate_settings(pairs, recorded)
    plan = prepare(settings, settings.models)
    with trusting_code(settings.trust_remote_code):
        return _run_with(settings, plan)


def _run_all(pairs: Mapping[str, str]) -> int:
    arguments = {key: value for key, value in pairs.items() if key != "tasks"}
    settings = read_evaluate_settings({**arguments, "env": "identity"})  # any valid game works here
    plan = prepare(settings, settings.models)
    with trusting_code(settings.trust_remote_code):
        _contestants(plan)
    return evaluate_all.run(arguments, settings)


def _contestants(plan: PlayingPlan) -> list["Contestant"]:
    from evert.trainers.episodes.players import find

    contestants = [find(name, plan) for name in plan.players]
    for contestant in contestants:
        contestant.check()
    return contestants


def _run_with(settings: EvaluateSettings, plan: PlayingPlan) -> int:
    if settings.out:
        _check_folder(Path(settings.out).expanduser(), settings)  # before loading any models
    contestants = _contestants(plan)
    folder = run_folder.output_folder(settings.out, "evaluations", settings.name, EVALUATION)
    console = Console(highlight=False, markup=False, emoji=False)  # print names literally
    tasks = {f"{split}_tasks": listed for split, listed in plan.tasks.items()}
    for warning in texts_as_tasks(tasks):
        console.print(redacted(f"warning: {warning}"), soft_wrap=True)
    try:
        episodes = _evaluate(settings, contestants, plan.tasks, folder, console)
    except (EvertError, KeyboardInterrupt) as stopped:
        prefix = "Interrupted. " if isinstance(stopped, KeyboardInterrupt) else ""
        command = shlex.join(["evert", "evaluate", f"out={folder}"])
        stopped.add_note(f"{prefix}All finished episodes were saved. To resume: {command}")
        raise
    scored = {episode.model for episode in episodes if episode.reward is not None}
    return int(any(episode.model not in scored for episode in episodes))  # 1: unscored model


def _check_folder(path: Path, settings: EvaluateSettings) -> None:
    run_folder.check_output(path, "evaluations", EVALUATION)
    now = chz.asdict(settings)
    before = run_folder.recorded_settings(path, EvaluateSettings, EVALUATION)
    changes = [
        f"\n  {key}: {before[key]!r} -> {now[key]!r}"
        for key in before
        if key not in MAY_CHANGE and before[key] != now[key]
    ]
    if changes:
        raise RunFolderError(
            f"{path} contains an evaluation with different settings:{''.join(changes)}\nTo resume "
            "it, leave these settings out. To start a new evaluation, choose a different out=."
        )


def _evaluate(
    settings: EvaluateSettings,
    contestants: Sequence["Contestant"],
    tasks: Mapping[str, Sequence[Any]],
    path: Path,
    console: Console,
) -> list["EpisodeResult"]:
    from evert.trainers.episodes.playing import EpisodeLog, EpisodeResult, plan_episodes

    seeds = range(settings.seed, settings.seed + settings.seeds)
    folder, episodes = RunFolder(path), list[EpisodeResult]()
    with run_folder.alone_in(path, "evaluating", "out"):
        folder.write_json(EVALUATION, {"settings": chz.asdict(settings), **origin()})
        log = EpisodeLog(path)
        console.print(f"evaluation: {path}", soft_wrap=True)
        for contestant in contestants:
            plan = plan_episodes(contestant.name, contestant.digest, tasks, seeds)
            todo = [(episode, task) for episode, task in plan if episode.key not in log.by_key]
            _play(contestant, settings, todo, log, console)
            # the episode may have been recorded when the same weights had a different name
            episodes += [replace(log.by_key[e.key], model=e.model) for e, _ in plan]
        _report(episodes, settings, folder, console)
    return episodes


def _play(
    contestant: "Contestant",
    settings: EvaluateSettings,
    todo: Sequence["PlannedEpisode"],
    log: "EpisodeLog",
    console: Console,
) -> None:
    from evert.bridge.records.files import ROLLOUTS
    from evert.bridge.records.recorder import Recorder
    from evert.trainers.episodes.playing import play

    def say(line: str) -> None:
        console.print(redacted(f"{contestant.name}: {line}"), soft_wrap=True)

    if not todo:
        return
    began = time.monotonic()
    record = Recorder(log.folder / f"{ROLLOUTS}.jsonl") if settings.record else None
    with contestant.ready(say) as player, _progress(contestant.name, len(todo), console) as show:
        places = Semaphore(at_a_time(settings.parallel))
        player = replace(player, record=record, dialogues=SHOWN)
        run_async(play(todo, player, log.add, show, success=settings.success, places=places))
    say(f"{len(todo)} episodes in {time.monotonic() - began:.0f} s")


@contextmanager
def _progress(
    name: str, total: int, console: Console
) -> Iterator[Callable[["EpisodeResult"], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    counts = MofNCompleteColumn(), "{task.fields[successes]}"
    columns = ("{task.description}", BarColumn(), *counts, TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task = bar.add_task(name, total=total, successes="")
    won = count = 0

    def on_episode(episode: "EpisodeResult") -> None:
        nonlocal won, count
        won, count = won + episode.success, count + 1
        successes = f"{won} successes"  # short episodes finish first and would bias a rate
        bar.update(task, advance=1, successes=successes)
        if not console.is_terminal and count % -(-total // 5) == 0:
            console.print(f"{name}: {count}/{total}  {successes}", soft_wrap=True)

    with bar:
        yield on_episode


def _report(
    episodes: Sequence["EpisodeResult"],
    settings: EvaluateSettings,
    folder: RunFolder,
    console: Console,
) -> None:
    from evert.trainers.episodes import scores
    from evert.trainers.episodes.playing import failures
    from evert.trainers.reporting.figures.bars import draw_categories, draw_splits
    from evert.trainers.reporting.figures.pass_at_plot import draw_pass_at
    from evert.trainers.reporting.figures.style import save

    score = partial(scores.scores, game=settings.game, pass_at=settings.pass_at)
    splits = score(episodes, "split")
    categories = score([e for e in episodes if e.category], "category")
    rows = splits
    if len({row.split for row in splits}) > 1:
        totals = score(episodes)
        rows = [r for t in totals for r in (*(s for s in splits if s.model == t.model), t)]
    title = f"{settings.name}: {settings.seeds} episodes per task"
    title += f", temperature {settings.temperature:g}" + ", with search" * settings.search
    title += f", against {redacted(settings.opponent)}" * bool(settings.opponent)
    console.print(title, soft_wrap=True)
    console.print(scores.as_table(rows, scores.turns_name(episodes)))
    if play := scores.as_play_table(rows):
        console.print(play)
    for model in dict.fromkeys(episode.model for episode in episodes):
        counts = failures([episode for episode in episodes if episode.model == model])
        if counts.count:
            console.print(f"{model}: {counts.describe()}", soft_wrap=True)
        _show_answers([episode for episode in episodes if episode.model == model], console)
    folder.write(SCORES, scores.as_csv([*rows, *categories]))
    save(draw_splits(title, splits), folder.path / SPLITS_FIGURE)
    files = [SCORES, SPLITS_FIGURE]
    if categories:
        save(draw_categories(title, categories), folder.path / CATEGORIES_FIGURE)
        files.append(CATEGORIES_FIGURE)
    if settings.pass_at:
        save(draw_pass_at(title, splits), folder.path / PASS_AT_FIGURE)
        files.append(PASS_AT_FIGURE)
    console.print(f"{folder.path}: {', '.join(files)}", soft_wrap=True)


def _show_answers(episodes: Sequence["EpisodeResult"], console: Console) -> None:
    # for each task, only the episode with the first seed
    firsts = {(e.split, e.task): e for e in reversed(episodes) if e.dialogue}
    for episode in [*reversed(firsts.values())][:SHOWN]:
        reward = "no reward" if episode.reward is None else f"reward {episode.reward:g}"
        texts = episode.target, episode.dialogue[-1]["said"]
        task, answer = (textwrap.shorten(text, 100, placeholder=" ...") for text in texts)
        console.print(f'{episode.model}, task {task}: "{answer}" ({reward})', soft_wrap=True)
