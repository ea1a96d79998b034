"""``Ahead`` samples an agent's concurrent calls before the runner asks for them.

A runner samples one observation at a time; ``Ahead`` stands between it and its policy. When an
agent makes a call while others wait for their replies, the Env starts to sample it (``begin``).
Once the sample is ready, the Env returns the observation, and the runner gets the sample without
waiting. So every reply still goes through the runner, with its limits, hooks and token count. The
policy samples all other observations as usual.
"""

import asyncio
import contextvars
from collections.abc import Awaitable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.types import Observation

from evert.bridge.tokens.logprobs import keep_logprobs


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sampling:
    """A started sample. ``Ahead`` keeps only a weak reference to it."""

    observation: Observation
    task: "asyncio.Task[TokensWithLogprobs]"


class Ahead(TokenCompleter):
    """A policy that can start to sample before the runner asks it to.

    ``is_timed``: whether a sample that takes too long fails; a replayed one waits for its turn.
    """

    def __init__(self, policy: TokenCompleter, max_calls: int, *, is_timed: bool = True) -> None:
        self.max_calls = max_calls
        self._is_timed = is_timed
        self._policy = policy
        self._context = contextvars.copy_context()  # not an agent's: its calls are taken over
        self._samplings: WeakValueDictionary[int, Sampling] = WeakValueDictionary()

    def begin(
        self,
        observation: Observation,
        stop: StopCondition,
        max_tokens: int | None,
        seconds: float | None,
    ) -> Sampling:
        """Start to sample an observation; the runner must pass this same object."""

        async def sample() -> TokensWithLogprobs:
            async with asyncio.timeout(seconds if self._is_timed else None):
                return await self._ask(observation, stop, max_tokens)

        task = asyncio.get_running_loop().create_task(
            sample(), name="evert sample", context=self._context.copy()
        )
        task.add_done_callback(_retrieve)
        sampling = self._samplings[id(observation)] = Sampling(observation, task)
        return sampling

    def _ask(
        self, observation: Observation, stop: StopCondition, max_tokens: int | None
    ) -> Awaitable[TokensWithLogprobs]:
        if max_tokens is None:  # some policies take no max_tokens
            return self._policy(observation, stop)
        return self._policy(observation, stop, max_tokens=max_tokens)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Return the started sample, cut at ``max_tokens``, or sample now."""
        sampling = self._samplings.pop(id(model_input), None)
        if sampling is None or sampling.task.cancelled():
            return await self._ask(model_input, stop, max_tokens)
        return shortened(await sampling.task, max_tokens)

    def cancel(self) -> None:
        """Cancel the samples that no runner has asked for."""
        for sampling in [*self._samplings.values()]:
            sampling.task.cancel()
        self._samplings.clear()


def _retrieve(task: "asyncio.Task[TokensWithLogprobs]") -> None:
    if not task.cancelled():
        task.exception()  # else asyncio logs it, if no runner asks for the sample


def shortened(sampled: TokensWithLogprobs, max_tokens: int | None) -> TokensWithLogprobs:
    """Return a sample cut at ``max_tokens``; None: no cap."""
    if max_tokens is None or len(sampled.tokens) <= max_tokens:
        return sampled
    logprobs = sampled.maybe_logprobs
    return keep_logprobs(
        TokensWithLogprobs(
            tokens=sampled.tokens[:max_tokens],
            maybe_logprobs=None if logprobs is None else logprobs[:max_tokens],
            stop_reason="length",
        )
    )
