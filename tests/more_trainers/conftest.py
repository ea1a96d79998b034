"""The examples in ``docs/trainers.md``, with the packages that can be installed on a CPU.

    .frameworks/verifiers/bin/python -m pytest tests/more_trainers --environment verifiers

``frameworks/make_environment.py verifiers`` creates the environment. In the environment
``verifiers-v0``, which has an older version of verifiers, only the taskset's tests run. The
packages are not installed in .venv, so without ``--environment`` none of these tests is collected.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.tasksets.conftest import Said, tool_calls

GAMES = Path(__file__).parent.parent.parent / "examples"
EXAMPLES = [str(GAMES / "other_trainers"), str(GAMES)]
ENVIRONMENTS = str(Path(__file__).parent / "environments")
OLD, NEW = "verifiers-v0", "verifiers"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") in (OLD, NEW):
        sys.path[:0] = [*EXAMPLES, ENVIRONMENTS]  # as when an example is run
        # For verifiers' tool servers.
        os.environ["PYTHONPATH"] = os.pathsep.join([ENVIRONMENTS, os.environ.get("PYTHONPATH", "")])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    environment = config.getoption("environment")
    if environment == NEW or (environment == OLD and "taskset" in collection_path.stem):
        return None
    return None if environment == OLD and collection_path.is_dir() else True


Answer = Callable[[dict[str, Any]], dict[str, Any]]


JSON = "application/json"


def events(completion: dict[str, Any]) -> str:
    """Return a completion as a stream with a single chunk."""
    [choice] = completion["choices"]
    calls = choice["message"].get("tool_calls") or []
    delta = {**choice["message"], "tool_calls": [{"index": n, **c} for n, c in enumerate(calls)]}
    chunk = {**completion, "object": "chat.completion.chunk"}
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}]
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


@contextmanager
def served(answer: Answer) -> Iterator[int]:
    """Serve ``answer(body)`` on every path; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            streamed = bool(body.get("stream"))
            self.send_response(200)
            self.send_header("Content-Type", f"{'text/event-stream' if streamed else JSON}")
            self.end_headers()
            reply = answer(body)
            self.wfile.write((events(reply) if streamed else json.dumps(reply)).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def served_chat(say: Callable[[str], Said]) -> Iterator[str]:
    """Serve chat completions whose reply is ``say(conversation)``."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        said = say(" ".join(str(message.get("content")) for message in body["messages"]))
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if not isinstance(said, str):
            calls = tool_calls(said, len(body["messages"]))
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {**about, "choices": [choice], "usage": usage}

    with served(reply) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Yield the endpoint of a trainer whose model plays by bisection."""
    from game import next_guess

    with served_chat(lambda told: str(next_guess(told))) as url:
        yield url
