"""A run in a separate process: ``evert train`` with its output in a file.

If a run crashes or runs out of memory, the sweep and its other runs continue. On Linux the
processes are forked from one that has imported everything (``multiprocessing``'s fork server),
because importing takes longer than a short run. The fork server uses no model and no GPU.
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
"""Modules that every run imports."""
ERROR_LINES = 6
STOP_SECONDS = 60.0
"""How long an interrupted run may take to save its state and end."""
SPARE = 1.5
"""Memory to reserve for each run, as a multiple of what a run uses after its first step."""


def start(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start ``evert train``; ``output`` gets what it prints, ``environment`` adds variables."""
    is_linux = sys.platform == "linux"  # macOS's own libraries may not be used after a fork
    context: Any = multiprocessing.get_context("forkserver" if is_linux else "spawn")
    context.set_forkserver_preload(PRELOADED)
    process_args = (str(Path.cwd()), {**environment, **os.environ}, str(output), list(arguments))
    output.touch()  # the run may end before it opens the file
    process: BaseProcess = context.Process(target=_live, args=process_args)
    process.start()
    return process


def _live(cwd: str, environment: dict[str, str], output: str, arguments: list[str]) -> None:
    if sys.platform == "win32":
        return  # see ``commands/sweep.py``
    # In its own process group, the run gets Ctrl-C only once, from the sweep. It must not ignore
    # Ctrl-C, even if a shell started the sweep in the background.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # An agent that starts processes gets the default start method, as outside a sweep.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(cwd)  # the fork server's may differ
    os.environ.clear()
    os.environ.update(environment)
    with open(output, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_interrupt_when_orphaned, daemon=True).start()
    sys.exit(cli.main(["train", *arguments]))


def _interrupt_when_orphaned() -> None:
    """Interrupt the run when the sweep is killed, since the sweep can no longer do that."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


async def stop(process: BaseProcess, folder: RunFolder) -> bool:
    """Stop a run as Ctrl-C does, so that it saves its state; return whether it was running."""
    under_way = process.is_alive()
    if under_way and folder.begun:
        os.kill(process.pid or 0, signal.SIGINT)
    elif under_way:  # nothing to save, and it may not handle signals yet
        process.kill()
    deadline = time.monotonic() + STOP_SECONDS
    while process.is_alive():
        if time.monotonic() > deadline:
            process.kill()
        await asyncio.sleep(0.05)
    return under_way


def ending(code: int | None, output: Path, *, stopped: bool) -> tuple[str, str]:
    """Return how a run ended (completed, interrupted or failed), and what went wrong."""
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
    """Return how many such runs fit on the machine: 1 on a GPU, 0 before the first step ends."""
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
    """Return a process's memory in bytes, without memory shared with the fork server if known."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.AccessDenied:  # macOS shows it only to root
        return int(process.memory_info().rss)
