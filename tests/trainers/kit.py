"""Helpers for the trainer tests, in addition to ``tests/kit``. Fixtures are in ``conftest.py``.

- commands: settings of a small run, copying a run, running Python, sending an interrupt;
- ``spied``: records the calls of a function, which still runs;
- the engine: clients, prompts, data, a few training steps;
- models: a tiny tokenizer and model, and an endpoint for other models.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import tinker
import torch
from tests.kit import Patch
from tinker import types

from evert.trainers.rundir.folder import RunFolder

SMALL = ["env=identity", "device=cpu", "batch_size=4", "group_size=4", "samples=2", "eval_every=2"]
FINISHED = [*SMALL, "steps=3", "save_every=2"]
"""The settings of the ``finished`` run."""

Cli = Callable[..., str]


def environment() -> dict[str, str]:
    """Return this process's environment, without variables that affect commands."""
    dropped = ("TINKER_", "WANDB_", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


class _Interrupted:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # Python calls the signal handler here


def interrupt_in_finalizer() -> None:
    """Send Ctrl-C while a finalizer is running, where Python ignores exceptions."""
    _Interrupted()


def copy_of(run: RunFolder, path: Path) -> RunFolder:
    """Return a copy that may be changed. Weights are hard links: replace them, don't edit them."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)

    return RunFolder(shutil.copytree(run.path, path, copy_function=copy))


COMMANDS = """
import shlex, sys
from evert.trainers.cli import main
for line in sys.argv[1:]:
    print(shlex.split(line)[0], "ended with", main(shlex.split(line)), flush=True)
"""
"""A program that runs several ``evert`` commands in one process, because startup is slow."""


def run_python(
    *arguments: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    errors: int = subprocess.PIPE,
) -> str:
    """Run a Python subprocess that must succeed, and return its output.

    The output includes what it writes to stderr if ``errors`` is ``subprocess.STDOUT``.
    """
    command = [sys.executable, *arguments]
    process = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=800
    )
    assert process.returncode == 0, process.stdout + (process.stderr or "")[-2000:]
    return process.stdout


def spied(
    patch: Patch, owner: Any, name: str, note: Callable[..., Any] = lambda *args: args
) -> list[Any]:
    """Return a list to which each call of a function adds ``note(*args)``, by default ``args``."""
    calls, function = list[Any](), getattr(owner, name)

    @functools.wraps(function)
    def spy(*args: Any, **options: Any) -> Any:
        calls.append(note(*args))
        return function(*args, **options)

    patch.setattr(owner, name, spy)
    return calls


ADAM = types.AdamParams(learning_rate=1e-2)


def trainer_of(model: str, **options: Any) -> Any:
    """Return a training client for a model on the engine in use."""
    return tinker.ServiceClient().create_lora_training_client(model, **options).result()


def sampler_of(model: str) -> Any:
    return tinker.ServiceClient().create_sampling_client(base_model=model)


def snapshot(training: Any) -> Any:
    """Return a sampling client for a training client's current weights."""
    return training.save_weights_and_get_sampling_client().result()


def prompt(*tokens: int) -> types.ModelInput:
    """Return a prompt with these tokens, by default 1, 2, 3."""
    return types.ModelInput.from_ints(list(tokens or (1, 2, 3)))


def params(**options: Any) -> types.SamplingParams:
    """Return sampling parameters for replies of eight tokens, with no stop sequences."""
    return types.SamplingParams(**{"max_tokens": 8, "stop": [], **options})


def sequences(client: Any, *tokens: int, count: int = 1, **options: Any) -> Any:
    """Sample replies to a prompt."""
    return client.sample(prompt(*tokens), count, params(**options)).result().sequences


def datum(length: int = 8, seed: int = 0) -> types.Datum:
    """Return a datum of random tokens."""
    tokens = torch.randint(0, 200, (length + 1,), generator=torch.Generator().manual_seed(seed))
    inputs: Any = {"target_tokens": tokens[1:], "weights": torch.ones(length)}
    return types.Datum(model_input=prompt(*tokens[:-1].tolist()), loss_fn_inputs=inputs)


def loss_of(client: Any) -> float:
    return float(client.forward([datum()], "cross_entropy").result().metrics["loss:sum"])


def train(client: Any, steps: int = 2) -> None:
    """Train for several steps, each on a different datum."""
    for step in range(steps):
        client.forward_backward([datum(seed=step)], "cross_entropy")
        client.optim_step(ADAM).result()


def shaken(model: Any, noise: float = 0.1) -> Any:
    """Add noise to all weights of a model, so that missing norms or biases become visible."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return model.eval()


def make_tokenizer() -> Any:
    """Return a byte-level tokenizer with five special tokens."""
    from tokenizers import (  # type: ignore[import-untyped]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    wrap: Any = PreTrainedTokenizerFast
    tokenizer = wrap(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    extra = ["<|im_start|>", "<think>", "</think>", "<tool_call>"]
    tokenizer.add_special_tokens({"additional_special_tokens": extra})
    return tokenizer


def make_model(vocabulary: int, end: int | None) -> Any:
    """Return a Qwen3 with 60,000 parameters whose logits are far from uniform."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config
    model: Any = Qwen3ForCausalLM
    settings = config(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        tie_word_embeddings=True, eos_token_id=end,
    )  # fmt: skip
    torch.manual_seed(0)
    return shaken(model(settings), 0.2)


@contextmanager
def chat_endpoint(reply: Callable[[dict[str, Any], str], dict[str, Any] | None]) -> Iterator[str]:
    """Serve chat completions; yield the address.

    ``reply`` takes the request body and the key and returns the message, or None to refuse the
    request with a 400.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = reply(body, self.headers["Authorization"])
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            completion = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            data = json.dumps({**completion, "choices": [choice]}).encode()
            self.send_response(200 if message else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
