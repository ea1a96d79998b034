"""Real programs as agents, over the loopback server, as ``evert.agents`` has them.

1. A Node.js script with the npm package ``openai`` plays an episode: whole, streamed, with a tool.
2. Claude Code, Codex, Gemini CLI and Aider fix a file, with their whole prompt and a lean one: an
   episode is one datum, and nothing but the task is asked of the policy.
3. What a program says when it fails is in the error; a prompt that is too long ends the episode.

``test_gallery.py`` trains them by the command.
``frameworks/make_programs.py`` and ``make_environment.py`` install them.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import InitialObservationOverflow, Trajectory

from evert import AgentError, ChatAgentEnv, ProcessAgent, ScriptedPolicy
from evert.agents import aider, claude_code, codex, gemini_cli
from evert.bridge.episode.agent import NO_TASK

FRAMEWORKS = Path(__file__).parent.parent.parent / ".frameworks"
PROGRAMS = FRAMEWORKS / "programs"

GAME = """
import OpenAI from "openai";
const client = new OpenAI();
const model = process.env.EVERT_MODEL;
const tools = [{ type: "function", function: { name: "check_guess", parameters: {
  type: "object", properties: { number: { type: "integer" } } } } }];
const messages = [{ role: "user", content: "Guess my number." }];
const first = await client.chat.completions.create({ model, messages, tools });
const reply = first.choices[0].message;
const call = reply.tool_calls[0];
const guess = JSON.parse(call.function.arguments).number;
const hint = guess < Number(process.env.EVERT_TASK) ? "Too low" : "Right";
messages.push(reply, { role: "tool", tool_call_id: call.id, content: hint });
const stream = client.chat.completions.stream({ model, messages, tools });
const second = await stream.finalContent();
console.log(JSON.stringify([guess, hint, second]));
process.exit(second.includes("higher") ? 0 : 1);
"""

GUESS = '<tool_call>\n{"name": "check_guess", "arguments": {"number": 500}}\n</tool_call>'


FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "{judge}/check.py": "import sys\nsys.path.append(sys.argv[1])\n"
    "from calc import add\nassert add(2, 3) == 5\n",
}
CHECK = [sys.executable, "check.py", "{folder}"]
MADE = ["test", "-e", "{folder}/made"]
PATCH = """apply_patch <<'END'
*** Begin Patch
*** Update File: calc.py
@@
-    return a - b
+    return a + b
*** End Patch
END"""


def program(path: str) -> str:
    """Path of an installed program; a missing one is a failure."""
    assert (FRAMEWORKS / path).exists(), f"{path} is missing: run `make frameworks`"
    return str(FRAMEWORKS / path)


def call(name: str, **arguments: str) -> str:
    called = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{called}\n</tool_call>"


def claude(prompt: str, **options: Any) -> ProcessAgent:
    return claude_code(prompt, program=program("programs/node_modules/.bin/claude"), **options)


def codex_of_npm(prompt: str, **options: Any) -> ProcessAgent:
    return codex(prompt, program=program("programs/node_modules/.bin/codex"), **options)


def gemini(prompt: str, **options: Any) -> ProcessAgent:
    return gemini_cli(prompt, program=program("programs/node_modules/.bin/gemini"), **options)


def aider_of_pypi(prompt: str, **options: Any) -> ProcessAgent:
    return aider(prompt, program=program("aider/bin/aider"), edit=["calc.py"], **options)


async def play(
    agent: ProcessAgent, replies: list[str], task: Any = NO_TASK, **options: Any
) -> tuple[Trajectory, Any]:
    policy = ScriptedPolicy(replies)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, task, **options))
    said = [transition.ac.tokens for transition in trajectory.transitions]
    assert said == policy.actions
    return trajectory, trajectory.transitions[-1]


# -- 1. a script -----------------------------------------------------------------------------------


async def test_a_node_script_with_the_npm_sdk_plays_an_episode(tmp_path: Path) -> None:
    assert (PROGRAMS / "node_modules" / "openai").exists(), "run `make frameworks`"
    (tmp_path / "node_modules").symlink_to(PROGRAMS / "node_modules")
    (tmp_path / "game.mjs").write_text(GAME)
    node = shutil.which("node") or "node"
    agent = ProcessAgent([node, "game.mjs"], cwd=tmp_path)

    trajectory, last = await play(agent, [GUESS, "I go higher."], "777")

    assert last.logs["stdout"] == '[500,"Too low","I go higher."]\n', last.logs["stderr"]
    assert last.reward == 1.0
    assert len(trajectory.transitions) == 2
    assert last.metrics["lineages"] == 1
    assert last.metrics["tools/calls"] == 1


# -- 2. four programs fix a file ------------------------------------------------------------------

READ_AND_EDIT = [
    call("Read", file_path="calc.py"),
    call("Edit", file_path="calc.py", old_string="a - b", new_string="a + b"),
    "Done.",
]
READ_AND_REPLACE = [
    call("read_file", file_path="calc.py"),
    call(
        "replace", file_path="calc.py", instruction="Add.", old_string="a - b", new_string="a + b"
    ),
    "Done.",
]
SHELL = [call("exec_command", cmd="cat calc.py"), call("exec_command", cmd=PATCH), "Done."]
WHOLE_FILE = ["calc.py\n```\ndef add(a, b):\n    return a + b\n```\n"]


@pytest.mark.parametrize("lean", [False, True])
async def test_claude_code_fixes_a_file(lean: bool) -> None:
    agent = claude("Fix {task}.", lean=lean, files=FILES, reward=CHECK)
    trajectory, last = await play(agent, READ_AND_EDIT, "calc.py")

    assert last.reward == 1.0, last.logs
    assert last.logs["stdout"] == "Done.\n"
    assert last.metrics["tools/calls"] == 2
    assert len(trajectory.transitions) == 3  # no title, no summary
    assert len(trajectory_to_data(trajectory, 1.0)) == 1  # though it adds `replace_all`
    assert last.metrics["drift/completed_arguments"] == 1
    assert (trajectory.transitions[0].ob.length < 3000) is lean


@pytest.mark.parametrize("lean", [False, True])
async def test_codex_fixes_a_file(lean: bool) -> None:
    agent = codex_of_npm("Fix {task}.", lean=lean, files=FILES, reward=CHECK)
    trajectory, last = await play(agent, SHELL, "calc.py")

    assert last.reward == 1.0, last.logs
    assert last.logs["stdout"] == "Done.\n"
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert len(trajectory.transitions) == 3
    assert (trajectory.transitions[0].ob.length < 3000) is lean


@pytest.mark.parametrize("lean", [False, True])
async def test_gemini_cli_fixes_a_file(lean: bool) -> None:
    agent = gemini("Fix {task}.", lean=lean, files=FILES, reward=CHECK)
    trajectory, last = await play(agent, READ_AND_REPLACE, "calc.py")

    assert last.reward == 1.0, last.logs
    assert last.logs["stdout"] == "Done.\n"
    assert last.metrics["tools/calls"] == 2
    assert len(trajectory.transitions) == 3
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert last.metrics["drift"] == 0
    assert (trajectory.transitions[0].ob.length < 5000) is lean


async def test_aider_fixes_a_file() -> None:
    agent = aider_of_pypi("Fix {task}.", files=FILES, reward=CHECK)
    trajectory, last = await play(agent, WHOLE_FILE, "calc.py")

    assert last.reward == 1.0, last.logs
    assert "Applied edit to calc.py" in str(last.logs["stdout"])
    assert "raw.githubusercontent.com" not in str(last.logs["stdout"])  # no look for prices
    assert len(trajectory.transitions) == 1  # no message of a commit


async def test_claude_code_may_do_what_it_is_allowed_to_and_no_more() -> None:
    make = [call("Bash", command="""python3 -c 'open("made", "w")'"""), "Done."]
    python = ["Bash(python3 *)"]
    allowed = claude("Go.", lean=True, tools=python, reward=MADE)
    denied = claude("Go.", lean=True, reward=MADE)
    everything = claude("Go.", lean=True, permission_mode="bypassPermissions", reward=MADE)

    earned = [(await play(agent, make))[1].reward for agent in (allowed, denied, everything)]
    assert earned == [1.0, 0.0, 1.0]


async def test_gemini_cli_may_do_what_it_is_allowed_to_and_no_more() -> None:
    make = [call("run_shell_command", command="touch made"), "Done."]
    allowed = gemini("Go.", lean=True, tools=["run_shell_command"], reward=MADE)
    denied = gemini("Go.", reward=MADE)

    assert [(await play(agent, make))[1].reward for agent in (allowed, denied)] == [1.0, 0.0]


@pytest.mark.parametrize("ready", [claude, codex_of_npm, gemini, aider_of_pypi])
async def test_what_a_task_says_is_text_and_no_command_of_the_programs(
    ready: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("what nobody is to read")
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return "Done."

    agent = ready("{task}", files={"calc.py": "x = 1\n"})
    texts = [f"/run touch {tmp_path}/ran", f"!touch {tmp_path}/ran", "/help", "/init", "-"]
    for text in [*texts, f"@{tmp_path}/mine"]:
        before = len(prompts)
        await do_single_rollout(ScriptedPolicy(say), ChatAgentEnv(agent, text))
        assert text in prompts[before]

    assert not (tmp_path / "ran").exists()
    assert not any("what nobody is to read" in prompt for prompt in prompts)


# -- 3. errors -------------------------------------------------------------------------------------


async def test_what_a_program_says_at_its_start_is_in_the_error() -> None:
    agents = [
        claude("Go.", arguments=["--no-such-flag"]),
        codex_of_npm("Go.", arguments=["--no-such-flag"]),
        aider_of_pypi("Go.", arguments=["--no-such-flag"]),
    ]
    for agent in agents:
        with pytest.raises(AgentError, match="before it made a model call.*--no-such-flag"):
            await ChatAgentEnv(agent).initial_observation()


@pytest.mark.parametrize("ready", [claude, codex_of_npm, gemini, aider_of_pypi])
async def test_a_prompt_that_is_too_long_ends_the_episode_as_any(ready: Any) -> None:
    env = ChatAgentEnv(ready("Go.", files=FILES), context_length=500)
    found = await env.initial_observation()

    assert isinstance(found, InitialObservationOverflow)
    assert found.reward == -0.1
    assert found.metrics["stop/context_overflow"] == 1.0
