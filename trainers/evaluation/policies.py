"""What answers an agent's model calls in an evaluation: weights, an endpoint, or nobody."""

import dataclasses

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import EvertError
from evert.bridge.models import RemoteModel
from evert.bridge.rendering import prompt_renderer


class PolicyError(EvertError, RuntimeError):
    """A player without a model was asked for a model's reply."""


class SeededPolicy(TokenCompleter):
    """Samples one episode by seeds of its own, so that the order of play makes no difference.

    Args:
        client: The weights.
        max_tokens: Most tokens of one reply.
        temperature: 0 for greedy.
        seed: Of the episode; its n-th reply is drawn by ``seed + n``.
    """

    def __init__(
        self, client: tinker.SamplingClient, max_tokens: int, temperature: float, seed: int
    ) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._seed = seed

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The next reply."""
        params = tinker.SamplingParams(
            stop=stop,
            max_tokens=min(self._max_tokens, max_tokens or self._max_tokens),
            temperature=self._temperature,
            seed=self._seed,
        )
        self._seed += 1
        result = await self._client.sample_async(
            prompt=model_input, num_samples=1, sampling_params=params
        )
        (sequence,) = result.sequences
        return TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)


class EndpointPolicy(TokenCompleter):
    """Plays an Env by what a remote model says, written in the tokens of the Env's renderer.

    The prompt goes out as the agent's own messages, so that no chat format stands between; the
    tokens only carry the reply back, and have no log-probabilities.

    Args:
        env: Whose parked calls are answered.
        remote: The model; its temperature is the one that counts.
        max_tokens: Most tokens of one reply, if the agent asks for no fewer; None for no cap.
    """

    def __init__(
        self, env: ChatAgentEnv, remote: RemoteModel, max_tokens: int | None = None
    ) -> None:
        self._env = env
        self._remote = remote
        self._max_tokens = max_tokens

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The endpoint's reply to the call that waits.

        Raises:
            openai.OpenAIError: Of the endpoint, as the SDK raises it.
        """
        request = self._env.request
        assert request is not None  # the runner asks while a call waits
        caps = [cap for cap in (request.max_tokens, self._max_tokens) if cap is not None]
        reply = await self._remote(dataclasses.replace(request, max_tokens=min(caps, default=None)))
        renderer = prompt_renderer(self._env.renderer)
        tokens = [
            token for token in renderer.as_history([reply.parsed], 0, -1) if isinstance(token, int)
        ]
        tokens += renderer.missing_end(tokens)
        cut = reply.finish_reason == "length"
        return TokensWithLogprobs(tokens, [0.0] * len(tokens), "length" if cut else "stop")


class NoPolicy(TokenCompleter):
    """Of a player that calls no model."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Refuse.

        Raises:
            PolicyError: Always.
        """
        raise PolicyError(
            "This player called a model, and it has none. Name a model in models=, or mend it."
        )
