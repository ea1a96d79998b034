"""``PolicyQueue`` samples an agent's concurrent calls before the runner asks for them.

The runner samples one observation at a time, so the queue sits between the runner and the policy.
If an agent makes a call while other calls are pending, the Env submits it to the queue
(``open_calls.py``). Once the sample is ready, the Env returns the observation, and the runner gets
the sample immediately. So every reply still goes through the runner, which applies its limits and
hooks and counts tokens. All other observations are sampled by the policy as usual.
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
    """A sample in progress. The queue only keeps a weak reference to it."""

    observation: Observation
    task: "asyncio.Task[TokensWithLogprobs]"


class PolicyQueue(TokenCompleter):
    """Wraps a policy so that it can start sampling before the runner asks for it.

    Args:
        policy: The policy to sample from.
        max_calls: Maximum number of calls per episode to sample at the same time.
        is_timed: Whether samples can time out. False for replays, which may take longer.
    """

    def __init__(self, policy: TokenCompleter, max_calls: int, *, is_timed: bool = True) -> None:
        self.max_calls = max_calls
        self._is_timed = is_timed
        self._policy = policy
        # Don't sample in an agent's context: take-over would intercept the policy's requests.
        self._context = contextvars.copy_context()
        self._samples: WeakValueDictionary[int, Sample] = WeakValueDictionary()

    def submit(
        self,
        observation: Observation,
        stop: StopCondition,
        max_tokens: int | None,
        seconds: float | None,
    ) -> Sample:
        """Start sampling. The runner must later pass the same ``observation`` object."""

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
        """Return the earlier sample, truncated to ``max_tokens``. If there is none, sample now."""
        sample = self._samples.pop(id(model_input), None)
        if sample is None or sample.task.cancelled():
            return await self._ask(model_input, stop, max_tokens)
        return shortened(await sample.task, max_tokens)

    def cancel(self) -> None:
        """Cancel all samples that the runner has not asked for."""
        for sample in [*self._samples.values()]:
            sample.task.cancel()
        self._samples.clear()


def _retrieve(task: "asyncio.Task[TokensWithLogprobs]") -> None:
    if not task.cancelled():
        task.exception()  # prevents asyncio's "exception was never retrieved" log


def shortened(sampled: TokensWithLogprobs, max_tokens: int | None) -> TokensWithLogprobs:
    """Truncate a sample to ``max_tokens`` (None: no limit)."""
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
