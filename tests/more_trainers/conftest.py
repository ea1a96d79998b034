"""The examples of ``docs/trainers.md``, with the packages that install beside evert on a CPU.

    .frameworks/verifiers/bin/python -m pytest tests/more_trainers --environment verifiers

``frameworks/make_environment.py verifiers`` makes the environment. Without ``--environment``
nothing here is collected: the packages are not in .venv.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

GAMES = Path(__file__).parent.parent.parent / "examples"
HERE = "verifiers"
EXAMPLES = [str(GAMES / "other_trainers"), str(GAMES)]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") == HERE:
        sys.path[:0] = EXAMPLES  # as when one is run


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == HERE else True


Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def served(answer: Answer) -> Iterator[int]:
    """Serves what ``answer`` makes of each body, wherever it was posted; the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer(body)).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def served_chat(say: Callable[[str], str]) -> Iterator[str]:
    """An endpoint for chat completions, whose model says this to all that it was told."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        said = say(" ".join(message["content"] for message in body["messages"]))
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {**about, "choices": [choice], "usage": usage}

    with served(reply) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A trainer's endpoint, whose model bisects."""
    from game import next_guess

    with served_chat(lambda told: str(next_guess(told))) as url:
        yield url
