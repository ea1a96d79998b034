"""The worker process of ``PoolRollouts``, which receives groups and plays them on one event loop.

Both sides send frames, each of which consists of a number and bytes. The trainer sends each group
with a new number. To cancel the group, it sends a frame with that number and no bytes. It sends
``READY`` to check that the event loop is running, and the worker replies with ``READY``. When a
group finishes, the worker sends its outcome, which is empty if the group was cancelled. When stdin
is closed, the trainer has exited, so the worker cancels its groups and exits too. The agents'
output goes to stderr. If the process crashes, the stacks of all threads are printed there as well.
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
"""Code that starts a worker. The argument is the trainer's ``sys.path``."""
READY = 0
END_SECONDS = 10.0
"""Seconds that cancelled groups may take to clean up."""
HEAD = struct.Struct("<QQ")
"""Frame header: the frame's number and the size of its bytes."""

Frame = tuple[int, bytes]


def frame(number: int, data: bytes) -> bytes:
    """Encode a frame."""
    return HEAD.pack(number, len(data)) + data


def main() -> None:
    """Run a worker until the process exits."""
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
        except (OSError, MemoryError):  # the trainer is gone
            take(None)

    async def group(number: int, data: bytes) -> None:
        outcome = b""
        try:
            outcome = await play(data)
        finally:
            del groups[number]
            say(number, outcome)

    def take(message: Frame | None) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, message)

    threading.Thread(target=_read, args=(requests, take), daemon=True).start()
    while (message := await inbox.get()) is not None:
        number, data = message
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
    os._exit(0)  # agents' threads may still be running


def _read(requests: BinaryIO, take: Callable[[Frame | None], None]) -> None:
    """Pass each frame to ``take``, and pass None when the stream ends."""
    try:
        while len(head := requests.read(HEAD.size)) == HEAD.size:
            number, size = HEAD.unpack(head)
            take((number, requests.read(size)))
    finally:
        take(None)
