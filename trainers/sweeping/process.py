"""Run ``evert train`` in a separate process, with its output redirected to a file.

If a run crashes or runs out of memory, the sweep and its other runs continue. On Linux, we use
``multiprocessing``'s fork server with all modules preloaded, because importing them takes longer
than a short run. The fork server itself does not use a model or a GPU.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from evert.trainers import cli
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import RUN
from evert.trainers.system.machine import cores, free_memory

PRELOADED = [
    "tinker_cookbook.rl.train",
    "transformers.models.qwen3.modeling_qwen3",
    "peft",
    "matplotlib.figure",
    "evert.trainers.commands.train",
    "evert.trainers.engine.clients.service_client",
]
"""Modules to preload, because every run imports them."""
ERROR_LINES = 6
STOP_SECONDS = 60.0
"""Maximum time in seconds for an interrupted run to save its state and exit."""
SPARE = 1.5
"""Memory to reserve per run, as a multiple of its usage after the first step."""


def start(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start ``evert train`` with additional environment variables. Write its output to a file."""
    is_linux = sys.platform == "linux"  # macOS system libraries don't support forking
    context: Any = multiprocessing.get_context("forkserver" if is_linux else "spawn")
    context.set_forkserver_preload(PRELOADED)
    process_args = (str(Path.cwd()), {**environment, **os.environ}, str(output), list(arguments))
    output.touch()  # the run may exit before opening the file
    process: BaseProcess = context.Process(target=_live, args=process_args)
    process.start()
    return process


def _live(cwd: str, environment: dict[str, str], output: str, arguments: list[str]) -> None:
    if sys.platform == "win32":
        return  # ``commands/sweep.py`` rejects Windows
    # With a separate process group, the run only gets Ctrl-C once, from the sweep. It must not
    # ignore Ctrl-C, even if the sweep was started in the background by a shell.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Let agents start processes with the same start method as outside a sweep.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(cwd)  # the fork server's working directory may differ
    os.environ.clear()
    os.environ.update(environment)
    with open(output, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_interrupt_when_orphaned, daemon=True).start()
    sys.exit(cli.main(["train", *arguments]))


def _interrupt_when_orphaned() -> None:
    """Interrupt the run if the sweep is killed, since the sweep can no longer do so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


async def stop(process: BaseProcess, folder: RunFolder) -> bool:
    """Stop a run as Ctrl-C would, so that it saves its state. Return whether it was running."""
    under_way = process.is_alive()
    if under_way and folder.begun:
        os.kill(process.pid or 0, signal.SIGINT)
    elif under_way:  # nothing to save yet, and signal handlers may not be installed
        process.kill()
    deadline = time.monotonic() + STOP_SECONDS
    while process.is_alive():
        if time.monotonic() > deadline:
            process.kill()
        await asyncio.sleep(0.05)
    return under_way


def ending(code: int | None, output: Path, *, stopped: bool) -> tuple[str, str]:
    """Return the status of a run (completed, interrupted or failed), and what went wrong."""
    if code == 0:
        return "completed", ""
    if code == INTERRUPTED or stopped:
        return "interrupted", ""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return "failed", f"killed by {name}" + " (out of memory?)" * (name == "SIGKILL")
    lines = output.read_text(errors="replace").strip().splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    last = lines[errors[-1] :][:ERROR_LINES] if errors else lines[-ERROR_LINES:]
    return "failed", "\n".join(last) or f"exit status {code}"


def room_for(folder: RunFolder, pid: int | None) -> int:
    """Return how many runs like this one fit on this machine (only one if they use a GPU).

    Return 0 until the run has finished a step, because its memory usage is not known before that.
    """
    if not folder.steps_done():
        return 0
    engine = (folder.read_json(RUN) or {}).get("engine", {})
    if engine.get("device", "cpu") != "cpu":
        return 1
    memory = 1
    with suppress(psutil.Error):
        run = psutil.Process(pid)
        for process in (run, *run.children(recursive=True)):
            memory += memory_of(process)
    side_by_side = cores() // int(engine.get("threads", 1))
    return max(1, min(side_by_side, 1 + int(free_memory() / (SPARE * memory))))


def memory_of(process: psutil.Process) -> int:
    """Return a process's memory in bytes, excluding memory shared with the fork server."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.AccessDenied:  # requires root on macOS
        return int(process.memory_info().rss)
