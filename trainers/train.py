"""Train an agent: ``python -m evert.trainers.train env=identity``, or ``evert train ...``.

The Tinker Cookbook's ``rl.train.main`` does the training, unchanged; here is what goes around it.
From top to bottom: the command, the run (``train``), and its three parts: score the untrained
weights on held-out tasks, let the Cookbook train, score the trained ones and report.

What a run is made of is in ``recipes.py``, its folder in ``run_folder.py``, the engine in
``engine_choice.py``, what is shown meanwhile in ``progress.py``.
"""

import asyncio
import errno
import gc
import random
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz
from chz.blueprint import EntrypointHelpException
from rich.console import Console

from evert.bridge.errors import AgentError, EvertError
from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.engine_choice import choose_engine, running_engine, say
from evert.trainers.runs.folder import RunFolder, cannot_write, describe, open_run
from evert.trainers.runs.progress import quiet_progress_bars
from evert.trainers.runs.settings import (
    TrainSettings,
    check_settings,
    choose_recipe,
    cookbook_config,
)

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config
    from tinker_cookbook.rl.types import RLDataset

    from evert.trainers.engine.checkpoints import CheckpointStore
    from evert.trainers.evaluation.held_out import Evaluation
    from evert.trainers.runs.tracking import Trackers

PROGRAM = ("python", "-m", "evert.trainers.train")
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


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
    # As ``python -m`` does, so that the console script finds a user's own agent, too.
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    began = time.monotonic()
    quiet_progress_bars()
    console = Console(highlight=False)
    folder: RunFolder | None = None
    try:
        settings = parse(arguments)
        choose_engine(settings)
        check_settings(settings)
        folder = open_run(settings)
        train(settings, folder, console, [*program, *arguments], began)
        return 0
    except EntrypointHelpException as shown:
        print(str(shown).rstrip())
        return 0
    except KeyboardInterrupt:
        pass  # and let go of its frames, with the rollouts in them
    except Exception as error:
        return _failed(error, folder, program, arguments)
    return _interrupted(console, folder, program, arguments)


def parse(arguments: list[str]) -> TrainSettings:
    """Read ``key=value`` arguments over the recipe, or over the settings of the run to resume.

    Raises:
        RecipeError: There is no such game, or a value is out of range.
        EntrypointHelpException: ``--help`` was asked for; its text is the help.
    """
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    layer, preset = choose_recipe(given)
    if recorded := run_folder.recorded_settings(given.get("log_path", "")):
        layer, preset = "the run to resume", recorded
    blueprint = chz.Blueprint(TrainSettings).apply(preset, layer_name=layer)
    return blueprint.make_from_argv(list(arguments))


def resume_command(folder: RunFolder, program: Sequence[str], arguments: Sequence[str]) -> str:
    """The command line that goes on with a run."""
    kept = [argument for argument in arguments if not argument.startswith("log_path=")]
    return shlex.join([*program, *kept, f"log_path={folder.path}"])


def _interrupted(
    console: Console, folder: RunFolder | None, program: Sequence[str], arguments: Sequence[str]
) -> int:
    with warnings.catch_warnings():
        # The Cookbook's cancelled rollouts are collected here: some had not begun, which is fine.
        warnings.simplefilter("ignore", RuntimeWarning)
        gc.collect()
    if folder is None or not folder.begun:
        console.print("\nInterrupted before the run began.")
        if folder is not None:
            folder.discard()
        return INTERRUPTED
    done = folder.steps_done()
    console.print(
        f"\nInterrupted after {done} step{'s' * (done != 1)}; they are saved in {folder.path}. "
        f"To go on:\n  {resume_command(folder, program, arguments)}",
        soft_wrap=True,
        markup=False,
    )
    return INTERRUPTED


def _failed(
    error: Exception, folder: RunFolder | None, program: Sequence[str], arguments: Sequence[str]
) -> int:
    """Say what went wrong; errors nobody foresaw keep their traceback."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        path = Path(error.filename) if error.filename else folder.path if folder else Path()
        error = cannot_write(path, error)
    usage = type(error).__module__.startswith("chz.")
    if not usage and not isinstance(error, EvertError):
        raise error
    if folder is not None and not folder.begun:
        folder.discard()
    if isinstance(error, AgentError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    print(f"error: {str(error).rstrip()}", file=sys.stderr)
    if folder is not None and folder.steps_done():
        print(f"To resume: {resume_command(folder, program, arguments)}", file=sys.stderr)
    return 1


# -- the run -------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a finished run has to tell."""

    before: "Evaluation | None"
    after: "Evaluation | None"
    """None where the run has no held-out tasks."""
    steps: int
    seconds: dict[str, float]
    """Of this session: ``total``, ``training``."""


def train(
    settings: TrainSettings,
    folder: RunFolder,
    console: Console,
    command: Sequence[str] = (),
    began: float | None = None,
) -> dict[str, Any]:
    """Train, from the first step or from where the folder's run stopped.

    Args:
        settings: Of the run.
        folder: Its open folder.
        console: Where to show how it goes.
        command: The command line, for the record.
        began: When the command was given, on the monotonic clock; None for now.

    Returns:
        What ``result.json`` says.

    Raises:
        EvertError: The run could not be done; the message says why.
        KeyboardInterrupt: Ctrl-C; the folder can be resumed.
    """
    from evert.trainers.runs.progress import logging_to
    from evert.trainers.runs.summary import summarise
    from evert.trainers.runs.tracking import tracking

    began = time.monotonic() if began is None else began
    choice = choose_engine(settings)
    checkpoints = folder.path / "checkpoints"
    _seed_everything(settings.seed)
    with (
        folder.in_use(),
        logging_to(folder.path),
        running_engine(choice, settings, checkpoints) as facts,
    ):
        console.print(say(facts), soft_wrap=True, markup=False)
        console.print(f"run folder: {folder.path}", soft_wrap=True, markup=False)
        if choice.kind == "embedded":
            _repair(folder, checkpoints, console)
        about = describe(settings, command, facts)
        with tracking(settings, folder, about, console) as trackers:
            if not folder.resumed:
                folder.write_json(run_folder.RUN, about)
            embedded = choice.kind == "embedded"
            done = asyncio.run(_run(settings, folder, console, trackers, embedded=embedded))
            done.seconds["total"] = time.monotonic() - began
            result = summarise(settings, facts, folder, done, console)
            trackers.result(result)
        return result


async def _run(
    settings: TrainSettings,
    folder: RunFolder,
    console: Console,
    trackers: "Trackers",
    *,
    embedded: bool,
) -> Report:
    from evert.trainers.evaluation.held_out import score_weights
    from evert.trainers.runs.warm_up import warm_up

    warm = await warm_up(settings, folder.path, console, embedded=embedded)
    config = cookbook_config(
        settings,
        folder.path,
        embedded=embedded,
        start=warm.state_path if warm else None,
        reference=warm.sampler_path if warm else None,
    )
    _, held_out = await config.dataset_builder()
    untrained = {"model_path": warm.sampler_path} if warm else {"base_model": settings.model_name}
    before = await _score_before(settings, config, held_out, folder, untrained)
    start = folder.steps_done()
    if start >= settings.steps:
        console.print(f"all {start} steps are done; a larger steps= would go on", markup=False)
    elif start:
        console.print(f"resuming after step {start} of {settings.steps}", markup=False)
    began = time.monotonic()
    await _train(config, folder, console, trackers, settings.steps, start)
    seconds = time.monotonic() - began
    trained = _final_weights(folder)
    after = await score_weights(config, held_out, samples=settings.samples, model_path=trained)
    return Report(before, after, max(start, settings.steps), {"training": seconds})


async def _score_before(
    settings: TrainSettings,
    config: "Config",
    held_out: "RLDataset | None",
    folder: RunFolder,
    untrained: dict[str, str],
) -> "Evaluation | None":
    """The scores of the weights that RL starts from; a resumed run has them on file."""
    from evert.trainers.evaluation.held_out import read_evaluation, score_weights

    if recorded := folder.read_json(run_folder.BEFORE):
        return read_evaluation(recorded)
    before = await score_weights(config, held_out, samples=settings.samples, **untrained)
    if before is not None:
        folder.write_json(run_folder.BEFORE, before.as_json())
    return before


async def _train(
    config: "Config",
    folder: RunFolder,
    console: Console,
    trackers: "Trackers",
    total: int,
    start: int,
) -> None:
    """The Cookbook's ``main``, with its progress shown and tracked."""
    from tinker_cookbook.rl import train as cookbook

    from evert.trainers.runs.progress import display, follow, follow_rows, quiet_cookbook

    trackers.begin(config)
    with display(console, total, start) as shown:
        async with (
            follow(folder.path, shown),
            follow_rows(folder.path, trackers.row),
            quiet_cookbook(cookbook.main(config)) as training,
        ):
            try:
                await training
            finally:
                await _finish_saving()


async def _finish_saving() -> None:
    """Let a checkpoint that is being written in the background be finished, after Ctrl-C too."""
    saving = [t for t in asyncio.all_tasks() if t.get_name().startswith("rolling_checkpoint_")]
    if saving:
        await asyncio.wait(saving, timeout=30)


def _final_weights(folder: RunFolder) -> str:
    return str([r["sampler_path"] for r in folder.checkpoints() if r.get("sampler_path")][-1])


def _seed_everything(seed: int) -> None:
    """The engine has its own seed; these are for agents that draw numbers of their own."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _repair(folder: RunFolder, root: Path, console: Console) -> None:
    """Leave out of the Cookbook's list what it could not resume from, and say so."""
    from evert.trainers.engine.checkpoints import CheckpointStore, repair_checkpoint_log

    run_folder.drop_broken_lines(folder.path / run_folder.METRICS)
    damaged = run_folder.drop_broken_lines(folder.path / run_folder.CHECKPOINTS) > 0
    store = CheckpointStore(root)
    states = [record for record in folder.checkpoints() if record.get("state_path")]
    if states and not store.is_intact(states[-1]["state_path"]):
        # After its last step the Cookbook lists a rolling checkpoint and deletes it: that is
        # no damage, and the final one comes before it.
        damaged |= not _is_deleted(states.pop(), store)
        damaged |= bool(states) and not store.is_intact(states[-1]["state_path"])
        repair_checkpoint_log(folder.path, store)
    if damaged:
        step = folder.steps_done()
        start = f"resuming after step {step}" if step else "starting again from the base model"
        console.print(f"the newest checkpoint is damaged: {start} instead", markup=False)


def _is_deleted(record: dict[str, Any], store: "CheckpointStore") -> bool:
    return bool(record.get("rolling")) and not store.folder(record["state_path"]).exists()


def new_run(console: Console | None = None, **values: Any) -> dict[str, Any]:
    """Train from Python: ``new_run(env="identity", seed=1)``; see ``TrainSettings``.

    Returns:
        What ``result.json`` says.

    Raises:
        EvertError: As ``train``.
    """
    layer, preset = choose_recipe(values)
    blueprint = chz.Blueprint(TrainSettings).apply(preset, layer_name=layer)
    settings = blueprint.apply(values, layer_name="arguments").make()
    check_settings(settings)
    return train(settings, open_run(settings), console or Console(highlight=False))


if __name__ == "__main__":
    sys.exit(main())
