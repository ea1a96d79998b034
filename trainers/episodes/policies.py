"""What answers an agent's model calls in an evaluation: weights, an endpoint, or nobody."""

import hashlib
import pickle
from collections import Counter
from dataclasses import dataclass, field, replace

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.errors import EvertError
from evert.bridge.models.remote import RemoteModel
from evert.bridge.tokens.logprobs import remembering
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.token_log import Chunk, flatten
from evert.trainers.serving.client import ServedSamplingClient


class PolicyError(EvertError, RuntimeError):
    """A player without a model was asked for a model's reply."""


@dataclass
class SeededPolicy(TokenCompleter):
    """Samples one episode by seeds of its own, so that the order of play makes no difference."""

    client: tinker.SamplingClient | ServedSamplingClient
    max_tokens: int
    """Of one reply, at most."""
    temperature: float
    """0 for greedy."""
    seed: int
    """Of the episode: the seed of a reply follows from it, from the prompt, and from how often that
    was answered before."""
    _answered: Counter[int] = field(default_factory=Counter, init=False, repr=False)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The next reply."""
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
        return remembering(
            TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)
        )

    def _seed_of(self, prompt: tinker.ModelInput) -> int:
        """The seed depends on the prompt, since simultaneous calls come in any order."""
        items = [x if isinstance(x, int) else _content(x) for x in flatten(prompt.chunks)]
        content = pickle.dumps(items, protocol=4)  # of numbers alone: equal ones are equal bytes
        key = int.from_bytes(hashlib.blake2b(content, digest_size=4).digest())
        self._answered[key] += 1
        return (self.seed + key + self._answered[key]) % 2**31


def _content(chunk: Chunk) -> int:
    """A number for a chunk, by its content; below 0, where no token id is."""
    digest = hashlib.blake2b(chunk.model_dump_json().encode(), digest_size=8).digest()
    return -1 - int.from_bytes(digest)


@dataclass
class EndpointPolicy(TokenCompleter):
    """Plays an Env by what a remote model says, written in the tokens of the Env's renderer.

    The prompt goes out as the agent's own messages, so that no chat format stands between; the
    tokens only carry the reply back, and have no log-probabilities.
    """

    env: ChatAgentEnv
    """Whose parked calls are answered."""
    remote: RemoteModel
    """Its temperature is the one that counts."""
    max_tokens: int | None = None
    """Of one reply, at most, if the agent asks for no fewer; None for no cap."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The endpoint's reply to the call that waits."""
        request = self.env.request_of(model_input)
        assert request is not None  # whoever asks does so while a call waits
        caps = [cap for cap in (request.max_tokens, self.max_tokens) if cap is not None]
        reply = await self.remote(replace(request, max_tokens=min(caps, default=None)))
        renderer = prompt_renderer(self.env.renderer)
        tokens = [t for t in renderer.as_history([reply.parsed], 0, -1) if isinstance(t, int)]
        tokens += renderer.missing_end(tokens)
        cut = reply.finish_reason == "length"
        return TokensWithLogprobs(tokens, [0.0] * len(tokens), "length" if cut else "stop")


class NoPolicy(TokenCompleter):
    """Of a player that calls no model."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Refuse."""
        raise PolicyError(
            "This player called a model, and it has none. Name one in models=, or correct it."
        )
