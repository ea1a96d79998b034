"""A finished run and a tiny random chat model, made once a session, and an endpoint for another."""

import fcntl
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

import pytest
import torch

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.rundir.folder import RunFolder

SMALL = ["env=identity", "device=cpu", "batch_size=4", "group_size=4", "samples=2", "eval_every=2"]
FINISHED = [*SMALL, "steps=3", "save_every=2"]
"""The settings of the run that ``finished`` is."""

Shown = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

NO_SOCKETS = """
import runpy, socket, sys

def refuse(self, address, *rest):
    raise SystemExit(f"a socket was opened to {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
sys.argv = ["evert", "train", *sys.argv[1:]]
runpy.run_module("evert.trainers.cli", run_name="__main__", alter_sys=True)
"""


def environment() -> dict[str, str]:
    """This process's, without anything that would change a command's course."""
    dropped = ("TINKER_", "WANDB_", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


class _Interrupted:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # here Python calls the signal's handler


def interrupt_in_finalizer() -> None:
    """Ctrl-C arrives while a finalizer runs, where Python drops exceptions."""
    _Interrupted()


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A command that is interrupted here leaves signals as at the end of a process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run to read, never to change: made by the command, in a process that opens no socket.

    All workers of a session have the same one; what it printed lies beside its ``runs`` folder.
    """
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "runs").exists():
            with (home / "stdout").open("w") as shown, (home / "stderr").open("w") as errors:
                command = [sys.executable, "-c", NO_SOCKETS, *FINISHED]
                subprocess.run(command, cwd=home, env=environment(), stdout=shown, stderr=errors)
    assert (home / "runs").exists(), (home / "stderr").read_text()
    (path,) = (home / "runs").iterdir()
    return RunFolder(path)


def copy_of(run: RunFolder, path: Path) -> RunFolder:
    """A copy to do things to; its weights are links, which are replaced and never written into."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)

    return RunFolder(shutil.copytree(run.path, path, copy_function=copy))


@pytest.fixture
def copied(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to do things to."""
    return copy_of(finished, tmp_path / "copy")


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """No service has a key here; and tiny operations gain nothing from threads, which wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TINKER_API_KEY", raising=False)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random Qwen3 model with a byte-level chat tokenizer of 262 tokens."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(len(tokenizer), tokenizer.eos_token_id).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The embedded engine, in use, with a store of its own."""
    with embedded_engine(tmp_path / "store", device="cpu") as running:
        yield running


def make_tokenizer() -> Any:
    """Bytes and five special tokens."""
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
    """A Qwen3 of 60 thousand parameters whose logits are far from uniform."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config
    torch.manual_seed(0)
    made: Any = Qwen3ForCausalLM
    settings = config(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        tie_word_embeddings=True, eos_token_id=end,
    )  # fmt: skip
    model = made(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norm weights, too: a forward pass that forgets one must not pass for the model.
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@contextmanager
def chat_endpoint(reply: Callable[[dict[str, Any], str], dict[str, Any] | None]) -> Iterator[str]:
    """Serves chat completions; gives its address.

    A message is ``reply`` of the body and the key; None: the request is refused with a 400.
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
