"""``Overlap``: the calls of one Env that are made while others wait for their replies.

The runner samples a call that is alone, so nothing changes for an agent whose calls never overlap.
After the first overlap, every call is sampled ahead of the runner (``ahead.py``) as soon as it
arrives. It becomes an observation when its sample is ready, so no call waits for another's reply.
A call that the agent gives up before then never becomes an observation.
"""

import asyncio

from tinker_cookbook.rl.types import Observation

from evert.bridge.env.ahead import Ahead
from evert.bridge.env.endings import Account
from evert.bridge.env.pending import Outstanding
from evert.bridge.tokens.loop_budget import LONG_TEXT

REACTION = 4
"""Cycles of the event loop in which an agent may react to a reply before it gets the next one.
During them, notes from tasks other than the caller's belong to that reply."""


class Overlap:
    """Decides which calls are sampled ahead of the runner.

    Attributes:
        ahead: Samples overlapping calls; None: the runner samples all calls.
        is_met: Whether calls have overlapped.
    """

    __slots__ = ("_account", "ahead", "is_met")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.ahead: Ahead | None = None
        self.is_met = False

    @property
    def max_calls(self) -> int | None:
        """Most calls that may be sampled at a time within the limits; None: no call ahead."""
        if self.ahead is None:
            return None
        account = self._account
        return account.budget.calls(self.ahead.max_calls, account.turns, account.sampled)

    def sampled_ahead(self, observation: Observation) -> Outstanding | None:
        """Return the call of an observation that is sampled ahead; None: the runner samples it."""
        for outstanding in self._account.inbox.ahead.values() if self._account.inbox else ():
            if outstanding.prompt is not None and outstanding.prompt[0] is observation:
                return outstanding
        return None

    def sample_ahead(self, outstanding: Outstanding) -> bool:
        """Start to sample a call ahead of the runner; False: the runner must sample it."""
        ahead, inbox, call = self.ahead, self._account.inbox, outstanding.call
        if ahead is None or inbox is None or not (self.is_met or inbox.has_calls):
            return False
        if self.max_calls is not None and self.max_calls < 1:
            return False  # the runner will end the episode with it
        self.is_met = True
        budget, renderer = self._account.budget, self._account.book.renderer
        outstanding.prompt = prompt, stop = outstanding.observation(renderer)
        length, sampled = outstanding.conversation.length, self._account.sampled
        max_tokens = budget.sample(outstanding.cap(budget), length, sampled)
        timeout = budget.limits.sampling_turn_timeout_seconds
        sampling = outstanding.sampling = ahead.begin(prompt, stop, max_tokens, timeout)
        inbox.ahead[call] = outstanding
        sampling.task.add_done_callback(
            lambda _: inbox.note_sampled(call) if outstanding.sampling is sampling else None
        )
        return True

    def switch(self, ahead: Ahead | None) -> None:
        """Sample with ``ahead`` from now on, including calls that wait for their samples."""
        self.ahead, self.is_met = ahead, False
        if (inbox := self._account.inbox) is None:
            return
        room = (self.max_calls or 1) - 1  # one more waits for the runner
        for number, outstanding in enumerate([*inbox.ahead.values()]):
            if outstanding.sampling is not None:
                outstanding.sampling.task.cancel()  # then the runner samples it
            if number < room:
                self.is_met = True
                inbox.note_resampled(outstanding.call)
                self.sample_ahead(outstanding)

    def sample_arrivals(self, sampled: Outstanding) -> None:
        """Start to sample calls that arrive while the runner samples another one.

        Calls that need more time (a long text) or a refusal wait for the next step.
        """
        inbox, max_calls, book = self._account.inbox, self.max_calls, self._account.book
        if inbox is None or max_calls is None or not sampled.call.is_waiting:
            return
        while len(inbox.ahead) < max_calls - 1 and (call := inbox.next_call()) is not None:
            try:
                conversation = book.observe(call.request, call.caller, book.renderer, LONG_TEXT)
            except Exception:
                inbox.put_back(call)
                return
            self.is_met = True
            self.sample_ahead(Outstanding(call, conversation, book.latest_drift))

    async def react(self) -> None:
        """Let the agent react to a reply if other calls wait.

        Without them, the Env waits for the agent's next call or its end anyway.
        """
        inbox = self._account.inbox
        if not self.is_met and (inbox is None or not inbox.has_calls):
            return
        for _ in range(REACTION):
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Cancel the samples: the episode is over."""
        for outstanding in self._account.inbox.ahead.values() if self._account.inbox else ():
            if outstanding.sampling is not None:
                outstanding.sampling.task.cancel()
