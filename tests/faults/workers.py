"""Faulty pool workers and what their trainer sees.

    DEEDS       things that an agent does to its worker once; its group is then played again
    PROGRAMS    programs that replace evert's worker program each time a worker is started

Each row states the group's result and the messages logged in the meantime. ``…`` matches anything.
Objects sent to workers are created in functions, so that they are pickled by value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evert.trainers.workers import process

PLAYED = "completed 1 in 1"
"""The result of a group that was eventually played."""


@dataclass(frozen=True)
class Deed:
    """Something that an agent does once in its worker, on the event loop that plays the groups."""

    name: str  # both the row's name and the task
    does: Callable[[], Any]
    trainer_sees: str = PLAYED
    told: str = ""  # the message logged about it, if any

    def __str__(self) -> str:
        return self.name


def agent_of(deed: Deed, flag: Path) -> Callable[..., Any]:
    """Return an agent that does the deed if the flag file does not exist yet."""
    does = deed.does

    def once() -> Any:
        if flag.exists():
            return 1.0
        flag.touch()
        return does()

    async def agent(client: Any, task: str) -> Any:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return once()

    return agent


def _deeds() -> list[Deed]:
    def kills_itself_beside_a_child() -> None:
        import os
        import signal
        import time

        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def closes_all_descriptors() -> float:
        import os

        os.closerange(3, 64)
        return 1.0

    def cancels_its_group() -> None:
        import asyncio

        for task in asyncio.all_tasks():
            if "group" in repr(task.get_coro()):
                task.cancel()
        raise asyncio.CancelledError

    def has_no_memory() -> bytearray:
        return bytearray(2**60)

    def earns_what_cannot_be_pickled() -> Any:
        import threading

        from evert import Outcome

        return Outcome(1.0, logs={"lock": threading.Lock()})  # type: ignore[dict-item]

    lost = "The group of agent … on task '{}' was lost because its worker died: process … {}."
    told = [
        ("SIGKILL beside a child", kills_itself_beside_a_child, "was killed by SIGKILL (out of…"),
        ("closed descriptors", closes_all_descriptors, "…"),
        ("a cancelled group", cancels_its_group, "was killed because it abandoned a group…"),
    ]
    return [
        *(Deed(name, does, told=lost.format(name, line)) for name, does, line in told),
        Deed("no memory", has_no_memory, "AgentError.MemoryError: …"),
        Deed("no pickle", earns_what_cannot_be_pickled, "…cannot pickle '_thread.lock' object…"),
    ]


DEEDS = _deeds()


@dataclass(frozen=True)
class Program:
    """A program that replaces evert's worker program."""

    name: str
    text: str  # its code; group() waits for the next group and returns its number
    trainer_sees: str
    told: str = ""  # all messages logged in the meantime
    seconds: float = 30.0  # timeout for a response
    start_seconds: float = 60.0  # timeout for starting
    printed: str = ""  # expected in stderr

    def __str__(self) -> str:
        return self.name

    @property
    def boot(self) -> str:
        return WELL + self.text


WELL = f"""
import os, signal, struct, sys, time
head = struct.Struct({process.HEAD.format!r})
def say(number, data=b"", size=None):
    os.write(1, head.pack(number, len(data) if size is None else size) + data)
def group():
    while True:
        number, size = head.unpack(sys.stdin.buffer.read(head.size))
        sys.stdin.buffer.read(size)
        if number != {process.READY}:
            return number
        say({process.READY})
"""

BLOCKS = """
import ast, types
async def play(group):
    time.sleep(60)
there = types.ModuleType("playing")
there.play, there.become_worker = play, lambda: None
sys.modules["evert.trainers.workers.playing"] = there
sys.path[:] = ast.literal_eval(sys.argv.pop())
from evert.trainers.workers.process import main
main()
"""

LOST = "LostGroupError: The group of …agent on task 1.0 was lost because its worker died 3…: {}. …"
NONE = "WorkerError: No workers could be started: each died 3 times… The last reason: {}. …"
SILENT = "process … was killed because it did not respond for 0.5 s: …(its stderr shows where)"

PROGRAMS = [
    Program(name, text, LOST.format(f"process … {how}"),
        f"…was lost because its worker died: process … {how}.…")
    for name, text, how in (
        ("exits when it gets a group", "group(); os._exit(7)", "exited with status 7"),
        ("exits normally", "group()", "exited with status 0"),
        ("crashes", "group(); os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("is terminated", "group(); os.kill(os.getpid(), 15)", "was killed by SIGTERM"),
        ("closes its pipe", "group(); os.close(1); time.sleep(60)",
            "was killed because it closed its pipe"),
        ("dies in the middle of a frame", "say(group(), b'half', 10); os._exit(1)",
            "exited with status 1"),
        ("sends an empty result", "say(group()); group()",
            "was killed because it abandoned a group…"),
    )
] + [
    Program(name, text, LOST.format(SILENT), f"…was lost because its worker died: {SILENT}.…", 0.5)
    for name, text in (
        ("is silent", "group(); time.sleep(60)"),
        ("is stopped", "group(); os.kill(os.getpid(), signal.SIGSTOP)"),
        ("prints to its pipe", "group(); os.write(1, b'Hello, trainer! ' * 9); group()"),
        ("sends half a frame", "say(group(), b'half', 10**6); group()"),
        ("sends a frame of 2^63 bytes", "say(group(), b'much', 2**63); group()"),
    )
]  # fmt: skip

PROGRAMS += [
    Program("sends data that is not a pickle", "say(group(), b'garbage'); group()",
        "WorkerError: The group of …agent on task 1.0: UnpicklingError: …can't be unpickled here…"),
    Program("blocks its event loop", BLOCKS, LOST.format(SILENT),
        f"…was lost because its worker died: {SILENT}.…", 0.5, printed="in play"),
    *(
        Program(name, text, NONE.format(f"process … {how}"),
            "; ".join([f"A worker could not be started: process … {how}."] * 3),
            start_seconds=seconds)
        for name, text, how, seconds in (
            ("cannot import", "import no_such_module", "exited with status 1", 60.0),
            ("is killed while starting", "os.kill(os.getpid(), 9)", "was killed by SIGKILL…", 60.0),
            ("is never ready", "time.sleep(60)", "was killed because it was not ready after…", 0.5),
        )
    ),
]  # fmt: skip
