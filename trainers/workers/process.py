"""The process of a pool's worker: reads groups, plays them on one event loop, writes what came.

Both ways it is frames of a number and bytes: groups, a group's number with nothing to give it up,
and ``READY`` to ask whether the event loop runs. Back come ``READY`` and what came of each group,
nothing if it was given up. At the end of what there is to read, the trainer is done, or gone:
groups are given up, and that is all. What an agent prints goes to standard error, and so do the
stacks of all threads when the process crashes.
"""

import asyncio
import faulthandler
import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

BOOT = (
    "import ast, sys; sys.path[:] = ast.literal_eval(sys.argv.pop()); "
    "from evert.trainers.workers.process import main; main()"
)
"""Begins a worker, with the trainer's ``sys.path`` as its argument."""
READY = 0
END_SECONDS = 10.0
"""How long groups have to clean up when they are given up."""
_HEAD = struct.Struct("<QQ")
HEAD = _HEAD.size

Frame = tuple[int, bytes]


def frame(number: int, data: bytes) -> bytes:
    """Bytes as they are sent."""
    return _HEAD.pack(number, len(data)) + data


def read_head(head: bytes) -> tuple[int, int]:
    """A frame's number, and the size of what follows."""
    number, size = _HEAD.unpack(head)
    return number, size


def main() -> None:
    """Be a worker, to the end of the process."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    faulthandler.enable()
    asyncio.run(_serve(requests, replies))


async def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    from evert.trainers.workers.playing import become_worker, play

    become_worker()
    loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Frame | None]()
    groups: dict[int, asyncio.Task[None]] = {}

    def say(number: int, data: bytes) -> None:
        try:
            replies.write(frame(number, data))
            replies.flush()
        except (OSError, MemoryError):  # nobody hears us any more
            take(None)

    async def group(number: int, data: bytes) -> None:
        outcome = b""
        try:
            outcome = await play(data)
        finally:
            del groups[number]
            say(number, outcome)

    def take(found: Frame | None) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, found)

    threading.Thread(target=_read, args=(requests, take), daemon=True).start()
    while (found := await inbox.get()) is not None:
        number, data = found
        if number == READY:
            say(READY, b"")
        elif data:
            groups[number] = asyncio.create_task(group(number, data))
        elif number in groups:
            groups[number].cancel()
    for playing in groups.values():
        playing.cancel()
    if groups:
        await asyncio.wait(groups.values(), timeout=END_SECONDS)
    sys.stdout.flush()
    os._exit(0)  # agents' threads may run on


def _read(requests: BinaryIO, take: Callable[[Frame | None], None]) -> None:
    """Hand over each frame, and None at the end."""
    try:
        while len(head := requests.read(HEAD)) == HEAD:
            number, size = read_head(head)
            take((number, requests.read(size)))
    finally:
        take(None)
