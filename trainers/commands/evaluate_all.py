"""``evert evaluate tasks=all-offline models=M``: evaluate on every taskset that works offline.

Tasksets depend on conflicting packages, so each taskset is evaluated in a separate process, using
this Python or the first virtual environment in ``environments=`` that has the required packages.
If no environment has them, the taskset is reported and skipped. The output folder contains:

    evaluation.json   arguments and package versions
    NAME/ NAME.txt    the evaluation on one taskset, and its console output
    scores.csv        all scores

``out=FOLDER`` resumes an interrupted evaluation.
"""

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from evert.bridge.redaction import redacted
from evert.envs.tasksets import GROUP
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.episodes.scores import mean_text, share_text
from evert.trainers.rundir.folder import RunFolder, output_folder
from evert.trainers.system.files import EVALUATION, SCORES, as_csv, read_csv, read_json, slug
from evert.trainers.system.provenance import origin

ALL = "all-offline"
TYPED = "typed"
"""Key under which ``evaluation.json`` stores the arguments."""
STOP_SECONDS = 30
"""How many seconds to wait for an interrupted evaluation to exit before killing it."""

USUAL = {"split": "test", "max_tasks": "20", "seeds": "1"}
"""Default settings, which the taskset and the user can override."""

CHECK = """\
import sys
from evert.bridge.errors import EvertError
from evert.envs.tasksets import task_game
try:
    task_game(dict(pair.split("=", 1) for pair in sys.argv[1:]))
except EvertError as error:
    sys.exit(str(error))
"""


def run(pairs: Mapping[str, str], settings: EvaluateSettings) -> int:
    """Evaluate on every offline taskset, and return 1 if any evaluation failed.

    ``pairs`` contains all arguments except ``tasks``, and ``settings`` is their parsed form.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    path = output_folder(settings.out, "evaluations", ALL, EVALUATION)
    arguments = {key: value for key, value in pairs.items() if key not in ("out", "environments")}
    folder = RunFolder(path)
    folder.write_json(EVALUATION, {"settings": {"tasks": ALL}, TYPED: arguments, **origin()})
    tasks, without_list = offline_tasks()
    rows, has_failed = list[dict[str, str]](), False
    console.print(f"evaluations: {path}", soft_wrap=True)
    if without_list:
        console.print(f"skipped, because they list no offline tasks: {', '.join(without_list)}")
    try:
        for number, (name, defaults) in enumerate(tasks, 1):
            out = path / slug(name)
            evaluation = {**USUAL, **defaults, **arguments, "tasks": name, "out": str(out)}
            python, why = _python_of(evaluation, settings.environments)
            began = time.monotonic()
            if python:
                why = _evaluate(python, evaluation, path / f"{slug(name)}.txt")
                has_failed = has_failed or bool(why)
            rows += [{"tasks": name, **row} for row in _scores(out)]
            result = why or f"{time.monotonic() - began:.0f} s"
            lines = [f"{number}/{len(tasks)}  {name}: {result}", *_failed_episodes(out)]
            console.print(redacted("\n".join(lines)), soft_wrap=True)
            folder.write(SCORES, as_csv(rows))
    except KeyboardInterrupt as stopped:
        command = shlex.join(["evert", "evaluate", f"out={path}"])
        stopped.add_note(f"Interrupted. All finished episodes were saved. To resume: {command}")
        raise
    console.print(_as_table(rows))
    console.print(f"{path / SCORES}", soft_wrap=True)
    return int(has_failed)


def recorded_arguments(out: str | None) -> dict[str, str]:
    """Return the arguments recorded in a folder, except ``trust_remote_code``."""
    record = (read_json(Path(out).expanduser() / EVALUATION) or {}) if out else {}
    arguments: dict[str, str] = record.get(TYPED, {})
    return {key: value for key, value in arguments.items() if key != "trust_remote_code"}


def offline_tasks() -> tuple[list[tuple[str, Mapping[str, str]]], list[str]]:
    """Return ("taskset:name", settings) for each offline task, and the tasksets without any."""
    tasks, without_list = list[tuple[str, Mapping[str, str]]](), list[str]()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            module = sys.modules[entry.load().__module__]
        except ImportError:  # some dependencies are missing
            module = None
        names: Mapping[str, Mapping[str, Any]] = getattr(module, "OFFLINE", {})
        for name, options in names.items():
            settings = {key: str(value) for key, value in options.items()}
            tasks.append((f"{entry.name}:{name}", settings))
        if not names:
            without_list.append(entry.name)
    return tasks, without_list


def _python_of(evaluation: Mapping[str, str], environments: str) -> tuple[str, str]:
    """Return (interpreter, "") if one can load the taskset; otherwise, ("", first error)."""
    arguments = [f"id={evaluation['tasks']}"]
    arguments += [f"{k[6:]}={v}" for k, v in evaluation.items() if k.startswith("tasks.")]
    interpreters = sorted(Path(environments).expanduser().glob("*/bin/python"))
    why = ""
    for python in [sys.executable, *map(str, interpreters)]:
        result = subprocess.run(
            [python, "-c", CHECK, *arguments], capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            return python, ""
        why = why or result.stderr.strip().rpartition("\n")[2]
    return "", f"skipped: {why}"


def _evaluate(python: str, evaluation: Mapping[str, str], output: Path) -> str:
    """Evaluate on one taskset. Return an error message, or "" if it succeeded."""
    pairs = [f"{key}={value}" for key, value in evaluation.items()]
    command = [python, "-P", "-m", "evert.trainers.cli", "evaluate", *pairs]
    with (
        output.open("wb") as file,
        # The process runs in a new session, where the terminal's Ctrl-C and SIGHUP do not reach it.
        # We forward each of these signals ourselves, so that it arrives exactly once.
        subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True) as process,
        _hang_up_interrupts(),
    ):
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                process.kill()
            raise
    if status == 0:
        return ""
    lines = output.read_text(errors="replace").splitlines()
    error = next((line for line in lines if line.startswith("error: ")), f"exit status {status}")
    return f"failed: {error.removeprefix('error: ')} ({output})"


@contextmanager
def _hang_up_interrupts() -> Iterator[None]:
    """Treat SIGHUP like Ctrl-C inside the block, unless it is ignored (nohup)."""
    if sys.platform == "win32":  # no SIGHUP on Windows
        yield
        return
    before = signal.getsignal(signal.SIGHUP)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _scores(folder: Path) -> list[dict[str, str]]:
    """Return the scores by split, or [] if the evaluation has not finished."""
    return [row for row in read_csv(folder / SCORES) if not row["category"]]


def _failed_episodes(folder: Path) -> list[str]:
    """Describe how many episodes failed and the most common error. Return [] if none failed."""
    from evert.trainers.episodes.playing import EpisodeError, EpisodeLog, failures

    try:
        counts = failures([*EpisodeLog(folder).by_key.values()])
    except EpisodeError:  # another version wrote the log, as the evaluation has reported
        return []
    return [f"  {line}" for line in counts.describe().splitlines()] if counts.count else []


def _as_table(rows: Sequence[Mapping[str, str]]) -> Table:
    numbers = [Column(n, justify="right") for n in ("episodes", "success (95 %)", "reward")]
    table = Table(Column("tasks", overflow="fold"), Column("model", overflow="fold"), *numbers)
    for row in rows:
        success = share_text(*(float(row[name]) for name in ("success", "low", "high")))
        reward = mean_text(float(row["reward"])) if row["reward"] else ""
        table.add_row(row["tasks"], row["model"], row["episodes"], success, reward)
    return table
