"""``evert train env=identity``, or ``evert.train(agent, tasks)`` from Python: train an agent.

Training itself is done by the Tinker Cookbook's ``rl.train.main``, unchanged. This module prepares
its config, evaluates on held-out tasks before and after training, and reports the results.
"""

import asyncio
import gc
import logging
import shlex
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import chz
from rich.console import Console

from evert.bridge.redaction import redacted
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.arguments import read_pairs, settings_help
from evert.trainers.config.backend import context_of, running_engine, say
from evert.trainers.config.fields import at_a_time
from evert.trainers.config.frozen_models import in_words as frozen_in_words
from evert.trainers.config.options import TrainOptions
from evert.trainers.config.recipes import choose_recipe
from evert.trainers.config.train import TrainSettings, is_missing
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system import files
from evert.trainers.system.command import run_async, run_command, seeded
from evert.trainers.training.preflight import PreparedRun, prepare
from evert.trainers.training.progress import logging_to, quiet_progress_bars
from evert.trainers.training.resuming import (
    check_folder,
    clean_up,
    open_run,
    prepare_folder,
    settings_of_run,
)
from evert.trainers.training.workers import rollout_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tinker_cookbook.checkpoint_utils import CheckpointRecord
    from tinker_cookbook.rl.train import Config
    from tinker_cookbook.utils.ml_log import Logger

    from evert.bridge.episode.agent import Agent
    from evert.trainers.training.failing_batches import Tally
    from evert.trainers.training.first_steps import FirstSteps
    from evert.trainers.training.held_out import Evaluation
    from evert.trainers.training.summary import RunSummary


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(_run_command, argv, usage)


def _run_command(arguments: list[str]) -> None:
    quiet_progress_bars()
    options = [argument for argument in arguments if not argument.startswith("log_path=")]
    run(
        parse(arguments),
        Console(highlight=False),
        lambda path: shlex.join(["evert", "train", *options, f"log_path={path}"]),
        ["evert", "train", *arguments],
    )


def parse(arguments: Sequence[str]) -> TrainSettings:
    """Parse ``key=value`` arguments. All other settings come from the resumed run or the recipe."""
    return settings_of_run(read_pairs(arguments, chz.chz_fields(TrainSettings), bare="env"))


def usage(arguments: list[str]) -> str:
    """Return the help text. It lists every setting with the value that these arguments give it."""
    if "cookbook" in arguments:
        from evert.trainers.training.cookbook import cookbook_help

        return f"Fields of the Cookbook's rl.train.Config:\n\n{cookbook_help()}"
    pairs = read_pairs(arguments, chz.chz_fields(TrainSettings), bare="env")
    layer, preset = choose_recipe(pairs)
    return (
        "Usage: evert train key=value ...\n\nTrains an agent with reinforcement learning.\n\n"
        + settings_help(TrainSettings, pairs, {layer: preset})
    )


def train(
    agent: "Agent | str | None" = None,
    tasks: Sequence[Any] | Mapping[str, Any] | str | None = None,
    *,
    test_tasks: Sequence[Any] | str | None = None,
    console: Console | None = None,
    **settings: Unpack[TrainOptions],
) -> RunFolder:
    """Train an agent. This is the Python API of ``evert train``, and also works in notebooks.

        run = evert.train(agent, TASKS, test_tasks=HELD_OUT, steps=30, learning_rate=1e-3)
        run.after["greedy"], run.plot, run.steps()

    To resume an interrupted run, call this again with the run's folder as ``log_path``.

    Args:
        agent: The agent, or its import path. None for a game (``env="identity"``) or a taskset.
        tasks: The tasks to train on: a sequence, an import path, or a file. Without an
            agent or a game, pass a taskset: ``"reasoning_gym:chain_sum"``, or
            ``{"id": ..., "max_terms": 2}``.
        test_tasks: Held-out tasks. Defaults to the game's held-out tasks, if there are any.
        console: Where to print progress. Defaults to stdout; ``Console(quiet=True)`` disables it.
        **settings: Any settings from ``evert train --help``, such as ``steps=30``. Pass mappings as
            dicts: ``limits={"max_turns": 9}``, ``models={"judge": "evert-tiny"}`` (or a model
            object), ``cookbook={"temperature": 0.8}`` for the Cookbook's ``rl.train.Config``.

    Returns:
        The run's folder, which gives access to its result, scores and metrics.

    Raises:
        EvertError: The run failed. The message explains why.
        KeyboardInterrupt: The run was interrupted. It can be resumed.
    """
    tasks_key = "tasks" if is_missing(agent) and isinstance(tasks, str | Mapping) else "train_tasks"
    arguments = {"agent": agent, tasks_key: tasks, "test_tasks": test_tasks}
    values = {**settings, **{key: value for key, value in arguments.items() if value is not None}}
    values = {key: _plain(value) for key, value in values.items()}
    return run(
        settings_of_run(values),
        console or Console(highlight=False),
        lambda path: f"call evert.train again with the same arguments and log_path={str(path)!r}.",
    )


def _plain(value: Any) -> Any:
    """Convert paths to strings and arrays to lists, because arrays can't be compared with ==."""
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def run(
    settings: TrainSettings,
    console: Console,
    resume_command: Callable[[Path], str],
    command: Sequence[str] = (),
) -> RunFolder:
    """Start a new run, or resume the run in the folder."""
    began = time.monotonic()
    check_folder(settings)
    prepared = prepare(settings)

    from evert.trainers.training.summary import summarise
    from evert.trainers.training.tracking import final_scores, tracking

    engine = prepared.engine
    with seeded(settings.seed), open_run(settings, resume_command) as folder:
        about = prepare_folder(folder, settings, command, engine.kind, console)
        with (
            trusting_code(settings.trust_remote_code),
            logging_to(folder.path),
            running_engine(
                engine, settings, folder.path / run_folder.STORE, prepared.models
            ) as facts,
            rollout_workers(settings) as workers,
        ):
            frozen = f"\n{frozen_in_words(settings.models)}" if settings.models else ""
            header = f"{say(facts)}\nrun folder: {folder.path}{frozen}"
            console.print(redacted(header), soft_wrap=True, markup=False)
            for text in () if folder.resumed else prepared.warnings:
                _warn(console, text)
            about["engine"] = facts
            folder.write_json(files.RUN, about)
            with tracking(settings, folder, about, console) as logger:
                report = _run_async(_run(prepared, folder, console, logger, workers))
                report.seconds["total"] = time.monotonic() - began
                logger.log_metrics(final_scores(summarise(facts, folder, report, console)))
            clean_up(folder)
        return folder


def _warn(console: Console, text: str) -> None:
    """Print a warning, and also write it to the run's ``logs.log``."""
    console.print(redacted(f"warning: {text}"), soft_wrap=True, markup=False)
    logging.getLogger(__name__).warning("%s", text)


def _run_async(training: Coroutine[Any, Any, "RunSummary"]) -> "RunSummary":
    stopped: BaseException | None = None
    was_frozen = gc.get_freeze_count() > 0
    try:
        return run_async(training)
    except KeyboardInterrupt as interrupted:
        stopped = interrupted
        raise
    finally:
        with warnings.catch_warnings():
            # Cancelled rollouts may leave coroutines that were never awaited. This is harmless.
            warnings.simplefilter("ignore", RuntimeWarning)
            while stopped is not None:  # the exception's frames keep the rollouts alive
                traceback.clear_frames(stopped.__traceback__)
                stopped = stopped.__context__
            gc.collect()  # after unfreezing, this would scan all modules, which takes a second
            if not was_frozen:
                gc.unfreeze()


async def _run(
    prepared: PreparedRun,
    folder: RunFolder,
    console: Console,
    logger: "Logger",
    workers: "Executor | None",
) -> "RunSummary":
    from evert.trainers.training.failing_batches import Tally
    from evert.trainers.training.first_steps import FirstSteps
    from evert.trainers.training.held_out import score_weights
    from evert.trainers.training.strategies import Counted, strategy_of
    from evert.trainers.training.summary import RunSummary
    from evert.trainers.training.warm_up import warm_up

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    gc.collect()  # run finalizers now: outside the event loop, they would swallow Ctrl-C
    gc.freeze()  # keeps later collections from scanning all modules, which blocks the loop
    settings = prepared.settings
    warm = await warm_up(settings, folder.path, console, embedded=prepared.engine.embedded)
    context = await asyncio.to_thread(context_of, settings)
    config = prepared.draft.config(folder.path, warm, context)
    config = chz.replace(config, rollout_error_tolerance=strategy_of(config))
    build: Any = config.dataset_builder  # an AgentDatasetBuilder
    _, held_out = await build()
    parallel = at_a_time(settings.parallel)
    score = partial(score_weights, config, held_out, samples=settings.samples, parallel=parallel)
    before = await _score_before(config, folder, warm, score)
    start = folder.steps_done()
    tally = Tally(folder, say, start, settings.steps, settings.failed_steps)
    first = FirstSteps(settings, partial(_warn, console))
    if before is not None and not start:
        tally.report("held-out tasks, untrained", before.failures)
        first.see_replies("on the held-out tasks", before.cut)
    if start >= settings.steps:
        say(f"all {start} steps are already done; pass a larger steps= to continue training")
    elif start:
        say(f"resuming after step {start} of {settings.steps}")
    began = time.monotonic()
    if workers is not None:
        say(f"rollouts: {workers}")
        tally.count_lost(None)
    places = asyncio.Semaphore(max(1, parallel // settings.test_group_size))
    strategy = Counted(config.effective_rollout_strategy(), tally, places)
    config = chz.replace(config, rollout_error_tolerance=strategy)
    await _train(config, folder, console, logger, tally, first, workers)
    seconds = time.monotonic() - began
    after = await score(model_path=await _last_sampler_path(config, folder))
    return RunSummary(settings, before, after, max(start, settings.steps), {"training": seconds})


async def _score_before(
    config: "Config",
    folder: RunFolder,
    warm: "CheckpointRecord | None",
    score: "Callable[..., Awaitable[Evaluation | None]]",
) -> "Evaluation | None":
    """Score the weights that RL starts from, or load the scores if the run was resumed."""
    from evert.trainers.training.held_out import read_evaluation

    if recorded := folder.read_json(files.BEFORE):
        return read_evaluation(recorded)
    if warm:
        before = await score(model_path=warm.sampler_path)
    elif path := config.load_checkpoint_path:
        before = await score(model_path=await _to_sample_from(path, config.base_url))
    else:
        before = await score(base_model=config.model_name)
    if before is not None:
        folder.write_json(files.BEFORE, asdict(before))
    return before


async def _to_sample_from(state_path: str, base_url: str | None) -> str:
    import tinker

    service = tinker.ServiceClient(base_url=base_url)
    client = await service.create_training_client_from_state_async(state_path)
    saved = await client.save_weights_for_sampler_async("untrained")
    return str((await saved).path)


async def _last_sampler_path(config: "Config", folder: RunFolder) -> str:
    """Return the sampler path of the final weights.

    If the run stopped between its last step and the Cookbook's final save, save them first.
    """
    import tinker
    from tinker_cookbook import checkpoint_utils as cookbook

    steps = folder.steps_done()
    last = [record for record in folder.checkpoints() if record.get("batch") == steps]
    saved = [record["sampler_path"] for record in last if record.get("sampler_path")]
    if not saved:
        service, about = tinker.ServiceClient(base_url=config.base_url), dict[str, str]()
        cookbook.add_renderer_name_to_user_metadata(about, config.renderer_name)
        client = await service.create_training_client_from_state_with_optimizer_async(
            last[-1]["state_path"], user_metadata=about
        )
        paths = await cookbook.save_checkpoint_async(
            client, "final", config.log_path, {"batch": steps}, "both"
        )
        saved.append(paths["sampler_path"])
    return str(saved[-1])


async def _train(
    config: "Config",
    folder: RunFolder,
    console: Console,
    logger: "Logger",
    tally: "Tally",
    first: "FirstSteps",
    workers: "Executor | None",
) -> None:
    from tinker_cookbook.rl import train as cookbook

    from evert.trainers.rundir.metrics import with_before
    from evert.trainers.training.failing_batches import NothingToLearnError
    from evert.trainers.training.progress import display, unsaved_shown
    from evert.trainers.training.tracking import follow

    total = config.max_steps or 0

    def on_row(row: Mapping[str, Any]) -> None:
        step = row.get("step", total)
        full_row = {**tally.row(step), **with_before(row, folder.path)}
        show(full_row)
        first.check_row(full_row)
        if step < total:  # Cookbook 0.6 logs a final row that has no step
            logger.log_metrics(full_row, step)

    logger.log_hparams(config)
    asyncio.get_running_loop().set_exception_handler(_log)
    with display(console, folder.path, total) as show, unsaved_shown(console), follow(on_row):
        try:
            await tally.watch(cookbook.main(config, workers))
        except AssertionError as error:  # no message means that the batch was empty
            removes = config.remove_constant_reward_groups
            could_be_empty = tally.has_skipped or removes
            if config.stream_minibatch_config is None or error.args or not could_be_empty:
                raise
            why = "see batches.jsonl in the run's folder"
            if not tally.has_skipped:
                why = "every group has equal rewards, and remove_constant_reward_groups is set"
            raise NothingToLearnError(
                f"A batch contained nothing to learn from ({why}). With stream_minibatch_config, "
                "Cookbook versions older than 0.6 cannot skip such a batch. Disable "
                "stream_minibatch_config or install tinker-cookbook 0.6, and use a new log_path in "
                "either case."
            ) from error
        finally:
            await _finish_saving()


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors from background tasks, such as a save that is no longer awaited."""
    logging.getLogger(__name__).info("%(message)s: %(exception)r", {"exception": None, **context})


async def _finish_saving() -> None:
    """Wait up to 30 s for background checkpoint saves to finish, even after Ctrl-C."""
    saving = [t for t in asyncio.all_tasks() if t.get_name().startswith("rolling_checkpoint_")]
    if saving:
        await asyncio.wait(saving, timeout=30)
