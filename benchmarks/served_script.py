"""A server backed by a scripted model, used by ``served_load.py``.

    python benchmarks/served_script.py same|marks

Prints the server's address and API key. Then, for each line that it reads from stdin, it prints the
resource usage of its process.
"""

import ctypes
import gc
import itertools
import json
import queue
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
from tinker import types

from evert.bridge.clients.dialects import gemini_tools
from evert.bridge.tokens.bases import BASE_MODEL, base_tokenizer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.serving import chat
from evert.trainers.serving.service import PolicyService

Answer = Callable[[list[int]], list[int]]
"""Maps prompt ids to reply ids."""


class Script:
    """A sampling client without a model. Replies are computed by ``answer``.

    Once per millisecond, a thread answers all waiting requests, as an engine does in each step.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._waiting: queue.SimpleQueue[tuple[Future[Any], list[int], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def get_base_model(self) -> str:
        """Return the name of the default base model."""
        return BASE_MODEL

    def get_tokenizer(self) -> Any:
        """Return the default base model's tokenizer."""
        return base_tokenizer()

    def sample(self, prompt: types.ModelInput, count: int, params: object) -> Any:
        """Queue a request; return an object with the future of its reply."""
        return self.watch(prompt, params, lambda _: None)

    def watch(self, prompt: types.ModelInput, params: object, watch: Any) -> Any:
        """Queue a request, like ``sample``. Before returning the tokens, call ``watch(tokens)``."""
        future: Future[Any] = Future()
        self._waiting.put((future, prompt.to_ints(), watch))
        return SimpleNamespace(future=lambda: future)

    def _work(self) -> None:
        while True:
            future, ids, watch = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue  # the client disconnected
            tokens = self._answer(ids)
            watch(tokens)
            sequence = types.SampledSequence(
                "stop", "", np.asarray(tokens), np.full(len(tokens), -1, np.float32)
            )
            future.set_result(types.SampleResponse(sequences=[sequence]))
            if self._waiting.empty():
                time.sleep(0.001)


def same() -> Answer:
    """Return a script that always gives the same reply."""
    renderer = prompt_renderer(None)
    reply = renderer.encode("I see.") + renderer.end_tokens[:1]
    return lambda _: [*reply]


def marks() -> Answer:
    """Return a script whose replies and tool calls repeat all marks in the prompt."""
    renderer = prompt_renderer(None)

    def answer(ids: list[int]) -> list[int]:
        text = renderer.decode(ids)
        named = " ".join(sorted({*re.findall(r"mark\d{7}", text)}))
        reply = f"I see {named}."
        if "look up" in text[-80:]:
            call = {"name": "look_up", "arguments": {"order": named}}
            reply = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return renderer.encode(reply) + renderer.end_tokens[:1]

    return answer


def odd(seed: int) -> Answer:
    """Return a script that replies with random token ids.

    Every third reply is a tool call that is encoded character by character.
    """
    renderer, draw, count = prompt_renderer(None), random.Random(seed), itertools.count()

    def answer(_: list[int]) -> list[int]:
        number = next(count)
        if number % 3 < 2:
            reply = [draw.randrange(500) for _ in range(draw.randrange(1, 24))]
        else:
            space = " " * draw.randrange(3)
            call = f'{{"name": {space}"look_up", "arguments":{space} {{"order": "{number} é"}}}}'
            letters = [renderer.encode(letter) for letter in call]
            ends = renderer.encode("<tool_call>\n"), renderer.encode("\n</tool_call>")
            reply = [*ends[0], *itertools.chain(*letters), *ends[1]]
        return reply + renderer.end_tokens[:1]

    return answer


def serve(name: str) -> None:
    """Serve a script. For each line from stdin, print this process's resource usage."""
    options: dict[str, Any] = {"context": 4096, "max_tokens": 256}
    if name == "marks":
        options["keep"], chat.KEPT_RESPONSES, gemini_tools.REMEMBERED = 2**18, 2**20, 2**9
    client = Script({"same": same, "marks": marks}[name]())
    with PolicyService() as service:
        model = chat.ChatModel(service.sample(client), prompt_renderer(None), **options)
        service.offer(client, "model")
        service.chat({"model": model})
        print(json.dumps([service.url, service.key]), flush=True)
        for line in sys.stdin:
            figures = {"cpu": time.process_time(), "kept": model.kept_tokens}
            if line.strip() == "memory":
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                figures["memory"] = psutil.Process().memory_info().rss
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
