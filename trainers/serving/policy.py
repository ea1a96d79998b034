"""``ServedPolicy``: a server of tokens as the Cookbook's ``TokenCompleter``.

For evaluation and collecting data from weights that run elsewhere: vLLM, llama.cpp's server,
``evert serve``. What it returns are the ids that the server sampled, with their log-probabilities.
"""

import asyncio
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.tokens.logprobs import remembering
from evert.trainers.serving.client import TIMEOUT, ServedSamplingClient
from evert.trainers.serving.fitness import check_server


class ServedPolicy(TokenCompleter):
    """Samples from a server that takes and returns token ids; picklable.

    The first call checks the server once (``fitness.py``): one that returns no token ids or
    log-probabilities is refused, with what to change.

    Args:
        base_url: The server's, for example ``http://127.0.0.1:8000/v1``.
        model: Its name there.
        api_key: The server's key; None for none.
        max_tokens: Of a reply, at most.
        temperature: Of sampling; 0 for greedy. The log-probabilities are the model's own, at 1.
        seed: Of the first reply, each further one has the next; None: the server's own.
        tokenizer: That prompts are written with (``env.renderer.tokenizer``), to check that the
            server's is the same; None: not checked.
        timeout: Seconds for one reply.
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
        """The next reply.

        Raises:
            SamplingRequestError: The server refuses the prompt: it is too long, say.
            ServingError: The server is gone, fails, or cannot be used.
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
        return remembering(
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
        vars(self).update(state, _checking=asyncio.Lock())
