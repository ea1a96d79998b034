"""Runs the examples of one environment, with a guard that fails if a socket is opened.

    .frameworks/openai3/bin/python -m pytest tests/frameworks --environment openai3

``frameworks/make_environment.py`` creates the environments. The frameworks are not installed in
.venv, so without ``--environment`` none of these tests is collected.
"""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.register_assert_rewrite("episodes")  # show details of failed assertions

ROOT = Path(__file__).parent.parent.parent

EXAMPLES = {
    "openai3": [
        "openai_sdk", "anthropic_sdk", "langchain_agent", "openai_agents", "google_adk",
        "microsoft_agent_framework", "pydantic_ai_agent", "autogen_agent", "smolagents_agent",
    ],
    "openai2": [
        "openai_sdk", "anthropic_sdk", "langchain_agent", "autogen_agent", "smolagents_agent",
        "crewai_agent", "litellm_agent", "dspy_agent",
    ],
    "tau2": [],
}  # fmt: skip
"""Environment -> the examples that must run in it."""

TWENTY_QUESTIONS = {
    "openai3": ["twenty_questions_langgraph"],
    "openai2": ["twenty_questions_langgraph", "twenty_questions_crewai"],
    "tau2": [],
}
"""Environment -> the Twenty Questions players that must run in it."""

PUBLIC = {
    "openai3": [
        "bank_support", "customer_service", "medical_triage", "react_search", "reflection",
        "supervisor", "text_to_sql", "time_range", "translations",
    ],
    "openai2": ["content_flow", "deep_research", "mini_swe"],
    "programs": ["fix_with_aider", "fix_with_claude_code", "fix_with_codex"],
}  # fmt: skip
"""Environment -> the gallery agents that must run in it. The "programs" agents run in openai3."""

OTHER_WAYS = {
    "openai3": [
        "langchain_stream", "langgraph_blocking_node", "openai_agents_stream",
        "google_adk_taken_over", "google_adk_stream", "microsoft_stream",
        "pydantic_ai_responses_stream", "autogen_team", "smolagents_stream",
    ],
    "openai2": [
        "langchain_stream", "langgraph_blocking_node", "autogen_team", "litellm_messages_stream",
        "crewai_stream", "dspy_in_a_thread", "dspy_own_engine_in_a_thread", "dspy_streamed",
        "dspy_over_loopback",
    ],
}  # fmt: skip
"""Environment -> the agents of other_ways.py that must run in it."""

SWITCHES = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
"""Settings that stop frameworks from calling home."""

KEYS = ("OPENAI_API", "ANTHROPIC_", "LANGSMITH_", "LANGCHAIN_", "TINKER_", "GOOGLE_", "GEMINI_")
"""Name prefixes of variables for API keys and addresses. No example may need them."""


@dataclass(frozen=True)
class Example:
    """An example's agent, and the script that plays its model."""

    name: str
    agent: Callable[..., Any]
    model: Callable[[str], str]

    @property
    def path(self) -> str:
        """The import path by which a dataset refers to the agent."""
        return f"{self.agent.__module__}:{self.agent.__name__}"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") not in EXAMPLES:
        return
    examples = ROOT / "examples"  # on sys.path, as when an example is run
    sys.path[:0] = [str(examples), str(examples / "gallery"), str(Path(__file__).parent)]
    for name in [name for name in os.environ if name.startswith(KEYS)]:
        del os.environ[name]
    os.environ.update(SWITCHES)  # must be set before any framework is imported
    if config.getoption("environment") == "tau2":  # needed when its tests are collected
        config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
        os.environ["LOGURU_LEVEL"] = "CRITICAL"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    environment = config.getoption("environment")
    is_of_tau2 = collection_path.name == "test_tau2.py"
    is_elsewhere = collection_path.suffix == ".py" and is_of_tau2 != (environment == "tau2")
    return True if environment not in EXAMPLES or is_elsewhere else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    environment = metafunc.config.getoption("environment")
    if "example" in metafunc.fixturenames:
        names = EXAMPLES[environment] + OTHER_WAYS[environment]
        metafunc.parametrize("example", names, indirect=True)
    if "script" in metafunc.fixturenames:
        metafunc.parametrize("script", EXAMPLES[environment] + TWENTY_QUESTIONS[environment])
    if "public" in metafunc.fixturenames:
        programs = PUBLIC["programs"] if environment == "openai3" else []
        metafunc.parametrize("public", PUBLIC[environment] + programs)
    if "player" in metafunc.fixturenames:
        metafunc.parametrize("player", TWENTY_QUESTIONS[environment], indirect=True)


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> str:
    """Return the name of the environment in which these tests run."""
    return str(request.config.getoption("environment"))


@pytest.fixture
def played() -> dict[str, list[str]]:
    """Return the examples played in each environment."""
    return {name: EXAMPLES[name] + TWENTY_QUESTIONS[name] for name in EXAMPLES}


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Example:
    """Return each agent in turn. A missing framework is an error."""
    name = request.param
    is_file = (ROOT / "examples" / f"{name}.py").exists()
    home = importlib.import_module(name if is_file else "other_ways")
    framework = name.partition("_")[0]
    agents = framework in ("dspy", "smolagents")  # these have scripted models of their own
    script = importlib.import_module(f"{framework}_agent" if agents else home.__name__)
    model = getattr(script, "model", importlib.import_module("game").guess_with_tool)
    return Example(name, getattr(home, "agent" if is_file else name), model)


@pytest.fixture
def player(request: pytest.FixtureRequest) -> ModuleType:
    """Return the module of each Twenty Questions player in turn."""
    return importlib.import_module(request.param)


@pytest.fixture
def no_sockets(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Fail on every connection, even to this machine, and on every name lookup.

    Agents that use the rollout's address may connect only to that address.
    """
    attempts: list[str] = []
    allowed = "127.0.0.1" if request.node.name.endswith("_over_loopback]") else None

    def forbid(where: object, name: str) -> None:
        original = getattr(where, name)

        def refuse(*arguments: Any, **options: Any) -> Any:
            if allowed is not None and allowed in str(arguments):
                return original(*arguments, **options)
            attempts.append(f"{name}{arguments[-2:]}")
            raise OSError(f"{name} is forbidden here")

        monkeypatch.setattr(where, name, refuse)

    for name in ("connect", "connect_ex", "sendto"):
        forbid(socket.socket, name)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        forbid(socket, name)
    yield attempts
    assert not attempts
