"""Plays a group in a worker, concurrently with other groups on the same event loop.

Groups don't run in separate threads, because unpickled renderers share the Cookbook's tokenizer,
which is not thread-safe.
"""

import asyncio
import logging
from contextlib import ExitStack
from contextvars import ContextVar

from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.types import TrajectoryGroup

from evert.bridge.models.older_servers import address_of, complete_client
from evert.bridge.models.tinker_model import register_client
from evert.trainers.engine.common.network import no_network
from evert.trainers.workers.errors import WorkerError
from evert.trainers.workers.travel import GroupOutcome, PackedError, Parcel, pack, unpack

_records: ContextVar[list[logging.LogRecord] | None] = ContextVar("evert_records", default=None)
"""Log records of the group that is running in this context."""
_process = ExitStack()
"""Context managers that stay open until the process exits."""
_guarded: set[frozenset[str]] = set()
_unpacking = asyncio.Lock()


async def play(data: bytes) -> bytes:
    """Play a packed ``Parcel`` and return its packed ``GroupOutcome``."""
    outcome = GroupOutcome()
    _records.set(outcome.records)
    try:
        async with _unpacking:  # imports may be slow and must not block the event loop
            parcel: Parcel = await asyncio.to_thread(unpack, data)
        _prepare(parcel)
        try:
            outcome.result = await _played(parcel.task)
        finally:
            builder = parcel.task.env_group_builder
            outcome.account = getattr(parcel.task.strategy, "account", None)
            outcome.rows = getattr(getattr(builder, "record", None), "rows", [])
            outcome.rewards = getattr(builder, "rewards", None)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # agents can raise anything, even KeyboardInterrupt
        outcome.error = PackedError.of(error)
    try:
        return pack(outcome)
    except WorkerError as error:  # for example, the user's metrics can't be pickled
        return pack(GroupOutcome(error=PackedError.of(error), account=outcome.account))


async def _played(task: object) -> TrajectoryGroup | None:
    fields = dict(vars(task))
    fields["do_remove_constant_reward_groups"] = fields.pop("remove_constant_reward_groups")
    group: TrajectoryGroup | None = await do_group_rollout_and_filter_constant_reward(**fields)
    return group


def _prepare(parcel: Parcel) -> None:
    logging.getLogger().setLevel(parcel.level)
    hosts = parcel.allow_hosts
    if hosts is not None and hosts not in _guarded:
        _guarded.add(hosts)
        _process.enter_context(no_network(hosts))
    complete_client(address_of(parcel.task.sampling_client))
    for model, client, context_length in parcel.weights:
        register_client(model, client, context_length)


class LogBuffer(logging.Handler):
    """Collects a group's log records, which are then logged by the trainer's process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record as text, since its arguments and exception might not be picklable."""
        if (records := _records.get()) is not None:
            record.msg, record.args = self.format(record), None
            record.exc_info = record.exc_text = record.stack_info = None
            records.append(record)


def become_worker() -> None:
    """Configure logging so that groups' log records are sent to the trainer."""
    logging.getLogger().handlers[:] = [LogBuffer()]
