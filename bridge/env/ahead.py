"""``Ahead``: what lets a runner, which samples one observation after the other, play calls at once.

It stands between a runner and its policy. The Env has it begin with the prompts of calls that are
made while others wait for their replies (``begin``), and hands out the observations whose samples
are there; the runner asks for one as ever, and gets it without a wait. So every reply still goes
through the runner, with its limits, its hooks and its count of tokens. An observation that was not
begun with is the policy's, as without ``Ahead``: that of an agent whose calls never meet.
"""

import asyncio
import contextvars
from collections.abc import Awaitable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.types import Observation

from evert.bridge.tokens.logprobs import remembering


@dataclass(slots=True, eq=False, weakref_slot=True)
class Begun:
    """A sample that was begun; it is forgotten with whoever holds this, and so is its result."""

    observation: Observation
    task: "asyncio.Task[TokensWithLogprobs]"


class Ahead(TokenCompleter):
    """A policy that may be asked before the runner asks."""

    def __init__(self, policy: TokenCompleter, max_calls: int) -> None:
        self.max_calls = max_calls
        self._policy = policy
        self._context = contextvars.copy_context()  # of whoever plays: an agent's takes calls over
        self._begun: WeakValueDictionary[int, Begun] = WeakValueDictionary()

    def begin(
        self,
        observation: Observation,
        stop: StopCondition,
        max_tokens: int | None,
        seconds: float | None,
    ) -> Begun:
        """Sample an observation that a runner will ask for: this object, not one like it."""

        async def sample() -> TokensWithLogprobs:
            async with asyncio.timeout(seconds):
                return await self._ask(observation, stop, max_tokens)

        task = asyncio.get_running_loop().create_task(
            sample(), name="evert sample", context=self._context.copy()
        )
        task.add_done_callback(_retrieve)
        begun = self._begun[id(observation)] = Begun(observation, task)
        return begun

    def _ask(
        self, observation: Observation, stop: StopCondition, max_tokens: int | None
    ) -> Awaitable[TokensWithLogprobs]:
        if max_tokens is None:  # there are policies that know no cap
            return self._policy(observation, stop)
        return self._policy(observation, stop, max_tokens=max_tokens)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The sample that was begun with, cut at ``max_tokens``; else one of the policy's."""
        begun = self._begun.pop(id(model_input), None)
        if begun is None or begun.task.cancelled():
            return await self._ask(model_input, stop, max_tokens)
        return shortened(await begun.task, max_tokens)

    def cancel(self) -> None:
        """Stop what no runner will ask for."""
        for begun in [*self._begun.values()]:
            begun.task.cancel()
        self._begun.clear()


def _retrieve(task: "asyncio.Task[TokensWithLogprobs]") -> None:
    if not task.cancelled():
        task.exception()  # the runner gets it; it may not ask


def shortened(sampled: TokensWithLogprobs, max_tokens: int | None) -> TokensWithLogprobs:
    """A sample as it would have been with a cap: its beginning."""
    if max_tokens is None or len(sampled.tokens) <= max_tokens:
        return sampled
    logprobs = sampled.maybe_logprobs
    return remembering(
        TokensWithLogprobs(
            tokens=sampled.tokens[:max_tokens],
            maybe_logprobs=None if logprobs is None else logprobs[:max_tokens],
            stop_reason="length",
        )
    )
