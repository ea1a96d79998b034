"""The vLLM inside the trainer's process, as a policy: calls that meet are generated together.

``vllm.LLM.generate`` is a blocking call for a batch. Episodes ask one by one; what is asked while a
batch runs makes the next one. Tested against a stand-in only: nothing here has met a real vLLM.
"""
# pyright: reportMissingImports=false

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tinker
import torch
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

GATHER_SECONDS = 0.002
"""How long a batch waits for calls that are about to come."""


@contextmanager
def colocated_thread(device: torch.device) -> Iterator[Executor]:
    """A thread that may use vLLM: PyTorch's present device is each thread's own."""

    def begin() -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)

    with ThreadPoolExecutor(1, "evert-vllm", begin) as thread:
        yield thread


@dataclass
class _Call:
    prompt: list[int]
    params: Any
    """vLLM's ``SamplingParams``."""
    reply: "asyncio.Future[TokensWithLogprobs]"


class ColocatedPolicy(TokenCompleter):
    """Answers from a ``vllm.LLM``.

    Args:
        llm: vLLM's.
        thread: Where it is called.
        max_tokens: Most tokens of a reply.
        temperature: To draw at.
    """

    def __init__(self, llm: Any, thread: Executor, *, max_tokens: int, temperature: float) -> None:
        self._llm = llm
        self._thread = thread
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._waiting: list[_Call] = []
        self._serving: asyncio.Task[None] | None = None

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Sample a reply."""
        from vllm import SamplingParams

        ids = all(isinstance(each, int) for each in stop)
        params = SamplingParams(
            max_tokens=min(self._max_tokens, max_tokens or self._max_tokens),
            temperature=self._temperature,
            logprobs=0,
            ignore_eos=True,  # the stops take the place of the model's own
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            **{"stop_token_ids" if ids else "stop": list(stop)},
        )
        loop = asyncio.get_running_loop()
        call = _Call(model_input.to_ints(), params, loop.create_future())
        self._waiting.append(call)
        if self._serving is None or self._serving.done():
            self._serving = loop.create_task(self._serve())
        return await call.reply

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_SECONDS)
            calls, self._waiting = self._waiting, []
            calls = [call for call in calls if not call.reply.done()]  # of episodes given up
            try:
                loop = asyncio.get_running_loop()
                replies = await loop.run_in_executor(self._thread, self._generate, calls)
            except Exception as error:
                for call in calls:
                    if not call.reply.done():
                        call.reply.set_exception(error)
                continue
            for call, reply in zip(calls, replies, strict=True):
                if not call.reply.done():
                    call.reply.set_result(reply)

    def _generate(self, calls: list[_Call]) -> list[TokensWithLogprobs]:
        if not calls:
            return []
        outputs = self._llm.generate(
            [{"prompt_token_ids": call.prompt} for call in calls],
            sampling_params=[call.params for call in calls],
            use_tqdm=False,
        )
        return [_reply(output.outputs[0]) for output in outputs]


def _reply(output: Any) -> TokensWithLogprobs:
    """A reply from vLLM's ``CompletionOutput``."""
    tokens, reason = list(output.token_ids), output.finish_reason
    logprobs = [each[token].logprob for token, each in zip(tokens, output.logprobs, strict=True)]
    return TokensWithLogprobs(tokens, logprobs, "length" if reason == "length" else "stop")
