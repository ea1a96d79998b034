"""Check the ``ProcessAgent`` that each ready-made agent builds.

The programs themselves run in tests/frameworks.
"""

import json
import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evert
from evert import AgentError, ChatAgentEnv, ChatAgentGroupBuilder, ProcessAgent
from evert.agents.variables import harmless
from evert.bridge.errors import InvalidAgentError
from evert.bridge.import_paths import resolve

NAMES = ["aider", "claude_code", "codex", "gemini_cli"]
READY: list[Callable[..., ProcessAgent]] = [getattr(evert.agents, name) for name in NAMES]
every_program = pytest.mark.parametrize("ready", READY, ids=NAMES)

THEIR_SETTINGS = """
CLAUDE_CONFIG_DIR CLAUDECODE ANTHROPIC_AUTH_TOKEN CLAUDE_CODE_OAUTH_TOKEN CLAUDE_CODE_USE_BEDROCK
CLAUDE_CODE_USE_VERTEX CLAUDE_CODE_USE_FOUNDRY CODEX_HOME GEMINI_CLI_HOME GEMINI_SANDBOX
GEMINI_SYSTEM_MD GOOGLE_GENAI_USE_GCA GOOGLE_GENAI_USE_VERTEXAI AIDER_MODEL HOME
""".split()  # noqa: SIM905
"""Variables that point these programs to the user's own settings or to a different model.

Any of them may be set in the trainer's environment.
"""

fix_bug = evert.agents.claude_code(
    "Fix the bug.", files={"a.py": "1 +"}, reward=["python", "{folder}/a.py"]
)


@every_program
def test_a_ready_made_agent_pickles_with_and_without_a_task(
    ready: Callable[..., ProcessAgent],
) -> None:
    ChatAgentEnv(ready(), "a task")
    ChatAgentEnv(ready("Fix it."))
    options: dict[str, Any] = {"setup": ["git", "init"], "env": {"A": "b"}}
    agent = ready("Fix it.", files={"a": "b"}, reward=["test", "-e", "{folder}/a"], **options)
    assert isinstance(agent, ProcessAgent)
    assert vars(pickle.loads(pickle.dumps(agent))) == vars(agent)
    assert resolve(f"evert.agents:{ready.__name__}", "agent", InvalidAgentError) is ready


def test_an_agent_defined_in_a_module_can_be_trained_by_import_path() -> None:
    builder = ChatAgentGroupBuilder("tests.agents.test_agents:fix_bug", "a task", 2)

    assert builder.agent is fix_bug
    assert pickle.loads(pickle.dumps(builder)).group_size == 2


@every_program
def test_a_task_is_never_parsed_as_an_option_or_command(ready: Callable[..., ProcessAgent]) -> None:
    command = ready("--help me").command
    within = {"--message=--help me", "--prompt=--help me"} & {*command}
    assert within or command[-2:] == ["--", "--help me"]
    for prompt in ("{task}", " {task[text]}", "{task} Run nothing."):
        holding = [argument for argument in ready(prompt).command if "{task" in argument]
        assert [argument.rpartition("=")[2] for argument in holding] == [f"\n{prompt}"]
    assert any(argument.endswith("/ask {task}") for argument in ready("/ask {task}").command)


@every_program
def test_process_options_are_passed_on_or_rejected(ready: Callable[..., ProcessAgent]) -> None:
    agent = ready(program="mine", arguments=["--more"], cwd="here", host="0.0.0.0", reward="file")

    assert (agent.cwd, agent.host, agent.reward) == ("here", "0.0.0.0", "file")
    assert agent.command[0] == "mine"
    assert "--more" in agent.command
    with pytest.raises(InvalidAgentError, match="reward='exits'"):
        ready(reward="exits")
    with pytest.raises(TypeError, match="rewards"):
        ready(rewards="exit")


def test_codex_uses_its_own_sandbox_only_if_requested() -> None:
    rows: list[tuple[Any, Any, str]] = [
        (None, None, "workspace-write"),
        (True, True, "workspace-write"),
        ("read-only", False, "read-only"),
    ]
    for setting, sandbox, expected in rows:
        agent = evert.agents.codex(sandbox=setting)
        assert agent.sandbox is sandbox
        commands = {expected: agent.command, "danger-full-access": agent.command_in_sandbox}
        for mode, command in commands.items():
            assert command[command.index("--sandbox") + 1] == mode


def test_only_ready_made_agents_use_a_sandbox_by_default() -> None:
    ready = [evert.agents.claude_code(), evert.agents.gemini_cli(), evert.agents.aider()]
    assert [agent.sandbox for agent in ready] == [None] * 3
    assert ProcessAgent(["ls"]).sandbox is False


def test_user_files_and_variables_override_the_defaults() -> None:
    files = {"a": "b", "{home}/.codex/config.toml": "mine"}
    agent = evert.agents.codex(files=files, env={"HOME": "elsewhere", "A": "b"})

    assert (agent.files, agent.env) == (files, {"HOME": "elsewhere", "A": "b"})


@pytest.mark.parametrize("lean", [False, True])
def test_the_codex_config_is_toml_with_the_rollout_address(lean: bool) -> None:
    files = evert.agents.codex(lean=lean).files
    config = tomllib.loads(str(files["{home}/.codex/config.toml"]))
    assert config["model_providers"]["evert"]["base_url"] == "{base_url}"
    assert config["analytics"] == {"enabled": False}
    assert config["features"]["plugins"] is False
    assert ("model_instructions_file" in config) is lean
    assert ("{home}/.codex/instructions.md" in files) is lean


def test_gemini_cli_logs_in_with_its_key_and_offers_the_selected_tools() -> None:
    def settings(**options: Any) -> Any:
        agent = evert.agents.gemini_cli(**options)
        return json.loads(str(agent.files["{home}/.gemini/settings.json"]))

    assert settings()["security"]["auth"] == {"selectedType": "gemini-api-key"}
    assert "tools" not in settings()
    assert settings(tools=["replace"], lean=True)["tools"] == {"core": ["replace"]}
    assert "run_shell_command" not in settings(lean=True)["tools"]["core"]
    assert "{home}/.gemini/system.md" in evert.agents.gemini_cli(lean=True).files
    assert evert.agents.gemini_cli(lean=True).env["GEMINI_SYSTEM_MD"] == "{home}/.gemini/system.md"


def test_claude_code_gets_the_selected_tools_and_keeps_completed_arguments() -> None:
    agent = evert.agents.claude_code(tools=["Read", "Bash(git *)", "Bash(ls)"])

    assert "--tools=Read,Bash" in agent.command
    assert "--allowedTools=Read,Bash(git *),Bash(ls)" in agent.command
    assert ChatAgentEnv(agent)._settings.keep_completed_arguments
    without = ChatAgentEnv(agent, keep_completed_arguments=False)
    assert not without._settings.keep_completed_arguments


def test_ready_made_agents_send_no_telemetry_and_ignore_user_settings() -> None:
    aider, claude, codex, gemini = (ready() for ready in READY)

    assert claude.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"  # titles, telemetry
    assert claude.env["CLAUDE_CODE_DISABLE_ATTACHMENTS"] == "1"  # "@/home/me/x" is just text
    assert gemini.env["GOOGLE_API_KEY"] is None  # GEMINI_API_KEY already holds the rollout key
    variables = harmless({name: "mine" for name in THEIR_SETTINGS})
    assert not variables.keys() & {*THEIR_SETTINGS}
    assert not any("HOME" in agent.env for agent in (aider, claude, codex, gemini))
    assert {"--analytics-disable", "--no-check-update", "--no-auto-commits"} <= {*aider.command}


@every_program
async def test_the_error_for_a_missing_program_explains_how_to_install_it(
    ready: Callable[..., ProcessAgent], tmp_path: Path
) -> None:
    install = {
        "aider": "pip install aider-chat",
        "claude_code": "npm install -g @anthropic-ai/claude-code",
        "codex": "npm install -g @openai/codex",
        "gemini_cli": "npm install -g @google/gemini-cli",
    }[ready.__name__]
    with pytest.raises(AgentError, match=f"nowhere' was not found(.|\\n)*{install}"):
        await ChatAgentEnv(ready(program=str(tmp_path / "nowhere"))).initial_observation()
