"""``OpenCalls``: samples overlapping calls of an agent concurrently.

Calls that do not overlap are sampled by the runner, so nothing changes for agents that never make
concurrent calls. After the first overlap, every call is submitted to the policy queue as soon as it
arrives. It becomes an observation once its sample is ready, so no call has to wait for another
call's reply. If the agent abandons a call before its sample is ready, the call never becomes an
observation.
"""

import asyncio

from tinker_cookbook.rl.types import Observation

from evert.bridge.env.endings import Account
from evert.bridge.env.pending import Outstanding, Standing
from evert.bridge.env.policy_queue import PolicyQueue
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.episode.notes import Note
from evert.bridge.tokens.loop_budget import LONG_TEXT

REACTION = 4
"""Number of event loop iterations that an agent gets to react to a reply before the next reply is
delivered. Notes that other tasks add during this time belong to the first reply."""


class OpenCalls:
    """Decides which calls are submitted to the policy queue.

    Attributes:
        queue: Samples overlapping calls. If it is None, the runner samples all calls.
        overlap: Whether calls have overlapped. Once they have, every call is submitted.
    """

    __slots__ = ("_account", "_standing", "overlap", "queue")

    def __init__(self, account: Account, standing: Standing) -> None:
        self._account = account
        self._standing = standing
        self.queue: PolicyQueue | None = None
        self.overlap = False

    @property
    def max_calls(self) -> int | None:
        """How many concurrent calls the limits allow, or None if there is no queue."""
        if self.queue is None:
            return None
        account = self._account
        return account.budget.calls(self.queue.max_calls, account.turns, account.sampled)

    def expect_overlap(self) -> None:
        """Submit every call from now on, even if it does not overlap with another one."""
        self.overlap = True

    def call_of(self, observation: Observation) -> ParkedCall | None:
        """Return the call for an observation that is being sampled, or None."""
        for call, outstanding in (
            self._account.inbox.submitted.items() if self._account.inbox else ()
        ):
            if outstanding.prompt is not None and outstanding.prompt[0] is observation:
                return call
        latest = self._standing.outstanding
        return None if latest is None else latest.call

    def submit(self, outstanding: Outstanding) -> bool:
        """Submit a call to the queue. Return False if the runner has to sample it."""
        queue, inbox, call = self.queue, self._account.inbox, outstanding.call
        if queue is None or inbox is None or not (self.overlap or inbox.has_calls):
            return False
        if self.max_calls is not None and self.max_calls < 1:
            return False  # the runner will end the episode here
        self.overlap = True
        budget, renderer = self._account.budget, self._account.book.renderer
        outstanding.prompt = prompt, stop = outstanding.observation(renderer)
        length, sampled = outstanding.conversation.length, self._account.sampled
        max_tokens = budget.sample(outstanding.cap(budget), length, sampled)
        timeout = budget.limits.sampling_turn_timeout_seconds
        sample = outstanding.sample = queue.submit(prompt, stop, max_tokens, timeout)
        inbox.submitted[call] = outstanding
        sample.task.add_done_callback(
            lambda _: inbox.note_sampled(call) if outstanding.sample is sample else None
        )
        return True

    def use(self, queue: PolicyQueue | None, *, overlap: bool = False) -> None:
        """Switch to a different queue, and resubmit calls whose samples are not ready yet.

        Args:
            queue: The new queue, or None to let the runner sample all calls.
            overlap: Whether to submit every call, even if it does not overlap with another one.
        """
        self.queue, self.overlap = queue, overlap
        if (inbox := self._account.inbox) is None:
            return
        room = (self.max_calls or 1) - 1  # the runner samples one call itself
        for number, outstanding in enumerate([*inbox.submitted.values()]):
            if outstanding.sample is not None:
                outstanding.sample.task.cancel()  # the runner samples it unless we resubmit it
            if number < room:
                self.overlap = True
                inbox.note_resampled(outstanding.call)
                self.submit(outstanding)

    def submit_arrivals(self, sampled: Outstanding) -> None:
        """Submit calls that arrived while the runner is sampling another call.

        Calls that have to be refused or are slow to render are left for the next step.
        """
        inbox, max_calls, book = self._account.inbox, self.max_calls, self._account.book
        if inbox is None or max_calls is None or not sampled.call.is_waiting:
            return
        while len(inbox.submitted) < max_calls - 1 and (call := inbox.next_call()) is not None:
            try:
                conversation = book.observe(call.request, call.caller, book.renderer, LONG_TEXT)
            except Exception:
                inbox.put_back(call)
                return
            self.overlap = True
            self.submit(Outstanding(call, conversation, book.latest_drift))

    async def react(self) -> None:
        """Give the agent time to react to a reply if other calls are pending.

        If no other calls are pending, this is unnecessary, because the Env waits until the agent
        makes its next call or ends.
        """
        inbox = self._account.inbox
        if not self.overlap and (inbox is None or not inbox.has_calls):
            return
        for _ in range(REACTION):
            await asyncio.sleep(0)

    def take_late_notes(self) -> list[Note]:
        """Remove and return the agent's notes for transitions that were already returned."""
        inbox = self._account.inbox
        return [] if inbox is None else inbox.notes.take_late()

    def stop(self) -> None:
        """Cancel all samples at the end of the episode."""
        for outstanding in self._account.inbox.submitted.values() if self._account.inbox else ():
            if outstanding.sample is not None:
                outstanding.sample.task.cancel()
