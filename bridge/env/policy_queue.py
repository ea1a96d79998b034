"""``PolicyQueue`` samples an agent's concurrent calls before the runner asks for them.

A runner samples one observation at a time; the queue sits between the runner and the policy. When
an agent makes a call while other calls wait for their replies, the Env submits that call
(``open_calls.py``). Once the sample is ready, the Env returns the observation, and the runner gets
the sample without waiting. So every reply still passes through the runner, with its limits, hooks
and token count. The policy samples all other observations as usual.
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
class Sample:
    """A sample that was started. The queue keeps only a weak reference to it."""

    observation: Observation
    task: "asyncio.Task[TokensWithLogprobs]"


class PolicyQueue(TokenCompleter):
    """A policy that can start sampling before the runner asks it to.

    Args:
        policy: The policy that samples.
        max_calls: Maximum number of an episode's calls to sample at the same time.
        is_timed: Whether a sample fails at its timeout; False for replays, which may wait longer.
    """

    def __init__(self, policy: TokenCompleter, max_calls: int, *, is_timed: bool = True) -> None:
        self.max_calls = max_calls
        self._is_timed = is_timed
        self._policy = policy
        self._context = contextvars.copy_context()  # outside agents, whose calls are taken over
        self._samples: WeakValueDictionary[int, Sample] = WeakValueDictionary()

    def submit(
        self,
        observation: Observation,
        stop: StopCondition,
        max_tokens: int | None,
        seconds: float | None,
    ) -> Sample:
        """Start sampling an observation; the runner must later pass the same ``observation``."""

        async def sampled() -> TokensWithLogprobs:
            async with asyncio.timeout(seconds if self._is_timed else None):
                return await self._ask(observation, stop, max_tokens)

        task = asyncio.get_running_loop().create_task(
            sampled(), name="evert sample", context=self._context.copy()
        )
        task.add_done_callback(_retrieve)
        sample = self._samples[id(observation)] = Sample(observation, task)
        return sample

    def _ask(
        self, observation: Observation, stop: StopCondition, max_tokens: int | None
    ) -> Awaitable[TokensWithLogprobs]:
        if max_tokens is None:  # some policies do not accept max_tokens
            return self._policy(observation, stop)
        return self._policy(observation, stop, max_tokens=max_tokens)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Return the sample that was started, cut at ``max_tokens``, or sample now."""
        sample = self._samples.pop(id(model_input), None)
        if sample is None or sample.task.cancelled():
            return await self._ask(model_input, stop, max_tokens)
        return shortened(await sample.task, max_tokens)

    def cancel(self) -> None:
        """Cancel the samples that no runner has asked for."""
        for sample in [*self._samples.values()]:
            sample.task.cancel()
        self._samples.clear()


def _retrieve(task: "asyncio.Task[TokensWithLogprobs]") -> None:
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs it if no runner asks for the sample


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
