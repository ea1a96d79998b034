"""Policies that answer an agent's calls in an evaluation: weights, an endpoint, or no model."""

import hashlib
import pickle
from collections import Counter
from dataclasses import dataclass, field, replace

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.chat.request import FrozenAnswer
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.errors import EvertError
from evert.bridge.tokens.logprobs import keep_logprobs
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.token_log import Chunk, flatten
from evert.trainers.serving.client import ServedSamplingClient


class PolicyError(EvertError, RuntimeError):
    """A player without a model made a model call."""


@dataclass
class SeededPolicy(TokenCompleter):
    """Samples an episode's replies with seeds that don't depend on the order of the episodes."""

    client: tinker.SamplingClient | ServedSamplingClient
    max_tokens: int
    """Maximum number of tokens in a reply."""
    temperature: float
    """Sampling temperature; 0 means greedy."""
    seed: int
    """The episode's seed. Each reply's seed is derived from it, the prompt, and the number of
    earlier replies to that prompt."""
    _answer_counts: Counter[int] = field(default_factory=Counter, init=False, repr=False)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Sample the next reply."""
        params = tinker.SamplingParams(
            stop=stop,
            max_tokens=min(self.max_tokens, max_tokens or self.max_tokens),
            temperature=self.temperature,
            seed=self._seed_of(model_input),
        )
        result = await self.client.sample_async(
            prompt=model_input, num_samples=1, sampling_params=params
        )
        (sequence,) = result.sequences
        return keep_logprobs(
            TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)
        )

    def _seed_of(self, prompt: tinker.ModelInput) -> int:
        """Return a seed that depends on the prompt, not on the order of calls, which can vary."""
        items = [x if isinstance(x, int) else _content(x) for x in flatten(prompt.chunks)]
        content = pickle.dumps(items, protocol=4)  # deterministic, since all items are integers
        key = int.from_bytes(hashlib.blake2b(content, digest_size=4).digest())
        self._answer_counts[key] += 1
        return (self.seed + key + self._answer_counts[key]) % 2**31


def _content(chunk: Chunk) -> int:
    """Return a hash of a chunk's content. It is negative, so that it differs from all token ids."""
    digest = hashlib.blake2b(chunk.model_dump_json().encode(), digest_size=8).digest()
    return -1 - int.from_bytes(digest)


@dataclass
class EndpointPolicy(TokenCompleter):
    """Plays an Env with a remote model or a person, encoding replies with the Env's renderer.

    The model or person receives the agent's messages rather than the rendered prompt. The tokens
    are only used to pass the reply to the Env, and their log-probabilities are all 0.
    """

    env: ChatAgentEnv
    """The Env that the policy plays."""
    remote: FrozenAnswer
    """The model (which sets the temperature itself) or the person."""
    max_tokens: int | None = None
    """Maximum number of tokens in a reply, unless the agent requests fewer (None: no limit)."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Request a reply to the pending call from the endpoint."""
        request = self.env.request_of(model_input)
        assert request is not None  # policies are only called while a call is pending
        caps = [cap for cap in (request.max_tokens, self.max_tokens) if cap is not None]
        reply = await self.remote(replace(request, max_tokens=min(caps, default=None)))
        renderer = prompt_renderer(self.env.renderer)
        tokens = [t for t in renderer.as_history([reply.parsed], 0, -1) if isinstance(t, int)]
        tokens += renderer.missing_end(tokens)
        cut = reply.finish_reason == "length"
        return TokensWithLogprobs(tokens, [0.0] * len(tokens), "length" if cut else "stop")


class NoPolicy(TokenCompleter):
    """The policy of a player without a model."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Raise a PolicyError."""
        raise PolicyError(
            "This player has no model, but made a model call. Add a model to models=, or fix the "
            "player."
        )
