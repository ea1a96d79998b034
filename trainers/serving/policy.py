"""``ServedPolicy``: a Cookbook ``TokenCompleter`` that samples from a token-id server.

Use it to evaluate weights that are served with vLLM, llama.cpp or ``evert serve``, or to collect
rollouts with them. It returns exactly the token ids that the server sampled, with their
log-probabilities.
"""

import asyncio
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.tokens.logprobs import keep_logprobs
from evert.trainers.serving.client import TIMEOUT, ServedSamplingClient
from evert.trainers.serving.server_check import check_server


class ServedPolicy(TokenCompleter):
    """Samples from a server that accepts and returns token ids. Can be pickled.

    The first call checks the server's token ids and log-probabilities (``server_check.py``).

    Args:
        base_url: The server's URL, for example ``http://127.0.0.1:8000/v1``.
        model: The model's name on the server.
        api_key: The server's API key, if it requires one.
        max_tokens: Maximum number of tokens in a reply.
        temperature: Sampling temperature (0: greedy). Log-probabilities are always at temperature
            1.
        seed: Seed for the first reply, which is incremented by 1 for each later reply (default:
            chosen by the server).
        tokenizer: The tokenizer used for the prompts (``env.renderer.tokenizer``). If set, the
            first call checks that the server uses the same one.
        timeout: Timeout for a reply, in seconds.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_tokens: int = 2048,
        temperature: float = 1.0,
        seed: int | None = None,
        tokenizer: Any | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.client = ServedSamplingClient(base_url, model, api_key, timeout=timeout)
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.seed = seed
        self._tokenizer = tokenizer
        self._is_checked = False
        self._checking = asyncio.Lock()

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Sample the next reply.

        Raises:
            SamplingRequestError: The server rejected the prompt, for example because it's too long.
            ServingError: The server is unreachable, failed, or is not suitable for training.
        """
        await self._check()
        params = tinker.SamplingParams(
            stop=stop,
            max_tokens=min(self.max_tokens, max_tokens or self.max_tokens),
            temperature=self.temperature,
            seed=self.seed,
        )
        if self.seed is not None:
            self.seed += 1
        [sequence] = (await self.client.sample_async(model_input, 1, params)).sequences
        return keep_logprobs(
            TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)
        )

    async def _check(self) -> None:
        if self._is_checked:
            return
        async with self._checking:
            if not self._is_checked:
                await check_server(self.client, self._tokenizer)
                self._is_checked = True

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_checking"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _checking=asyncio.Lock())
