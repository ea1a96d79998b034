"""Real programs as agents, created with ``evert.agents`` and connected over loopback."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import drift
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
    """Return the path of an installed program. Fail if it is missing."""
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


async def test_a_node_script_using_the_npm_sdk_plays_an_episode(tmp_path: Path) -> None:
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


EDIT = {"file_path": "calc.py", "old_string": "a - b", "new_string": "a + b"}
REPLACE = call("replace", instruction="Add.", **EDIT)
FIXES: list[tuple[Any, list[str], int]] = [
    (claude, [call("Read", file_path="calc.py"), call("Edit", **EDIT), "Done."], 3000),
    (codex_of_npm, [*(call("exec_command", cmd=c) for c in ("cat calc.py", PATCH)), "Done."], 3000),
    (gemini, [call("read_file", file_path="calc.py"), REPLACE, "Done."], 5000),
]
"""A program, its model's replies, and a number of tokens: the lean prompt has fewer tokens, and the
full prompt has more."""
WHOLE_FILE = ["calc.py\n```\ndef add(a, b):\n    return a + b\n```\n"]


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("ready", "replies", "short"), FIXES, ids=["claude", "codex", "gemini"])
async def test_a_program_fixes_a_file(
    ready: Any, replies: list[str], short: int, lean: bool
) -> None:
    agent = ready("Fix {task}.", lean=lean, files=FILES, reward=CHECK)
    trajectory, last = await play(agent, replies, "calc.py")

    assert last.reward == 1.0, last.logs
    assert last.logs["stdout"] == "Done.\n"
    assert last.metrics["tools/calls"] == 2
    assert len(trajectory.transitions) == 3  # no calls for a title or a summary
    assert len(trajectory_to_data(trajectory, 1.0)) == 1  # even if Claude adds `replace_all`
    assert last.metrics.get("drift/completed_arguments", 0) == (ready is claude)
    assert ready is not gemini or last.metrics["drift"] == 0
    assert (trajectory.transitions[0].ob.length < short) is lean


def test_an_episode_of_a_program_is_one_datum_instead_of_eight(tmp_path: Path) -> None:
    names = ["claude", "codex", "slime2288", "slime2288-kept"]
    for one in ("claude", "codex"):
        program(f"programs/node_modules/.bin/{one}")
    assert drift.main(["--quick", "--only", *names, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "drift.json").read_text())["rows"]

    data = {name: [row["data"] for row in rows[name].values()] for name in names}
    assert {name: [own, *others[:1]] for name, (own, *others) in data.items()} == {
        "claude": [1, 8], "codex": [1, 8], "slime2288": [8, 8], "slime2288-kept": [1, 8],
    }  # fmt: skip
    for name in names:
        assert rows[name]["evert"]["lost"] == 0 < rows[name]["last"]["lost"]
        assert rows[name]["merged"]["data"] > 1


async def test_aider_fixes_a_file() -> None:
    agent = aider_of_pypi("Fix {task}.", files=FILES, reward=CHECK)
    trajectory, last = await play(agent, WHOLE_FILE, "calc.py")

    assert last.reward == 1.0, last.logs
    assert "Applied edit to calc.py" in str(last.logs["stdout"])
    assert "raw.githubusercontent.com" not in str(last.logs["stdout"])  # prices are not downloaded
    assert len(trajectory.transitions) == 1  # no call for a commit message


async def test_programs_may_use_only_the_allowed_tools() -> None:
    bash = [call("Bash", command="""python3 -c 'open("made", "w")'"""), "Done."]
    shell = [call("run_shell_command", command="touch made"), "Done."]
    for ready, replies, reward, options in (
        (claude, bash, 1.0, {"lean": True, "tools": ["Bash(python3 *)"]}),
        (claude, bash, 0.0, {"lean": True}),
        (claude, bash, 1.0, {"lean": True, "permission_mode": "bypassPermissions"}),
        (gemini, shell, 1.0, {"lean": True, "tools": ["run_shell_command"]}),
        (gemini, shell, 0.0, {}),
    ):
        _, last = await play(ready("Go.", reward=MADE, **options), replies)
        assert last.reward == reward, options


@pytest.mark.parametrize("ready", [claude, codex_of_npm, gemini, aider_of_pypi])
async def test_the_text_of_a_task_is_never_run_as_a_command_of_the_program(
    ready: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("what nobody is to read")
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return "Done."

    agent = ready("{task}", files={"calc.py": "x = 1\n"}, sandbox=False)  # so no sandbox stops it
    texts = [f"/run touch {tmp_path}/ran", f"!touch {tmp_path}/ran", "/help", "/init", "-"]
    for text in [*texts, f"@{tmp_path}/mine"]:
        before = len(prompts)
        await do_single_rollout(ScriptedPolicy(say), ChatAgentEnv(agent, text))
        assert text in prompts[before]

    assert not (tmp_path / "ran").exists()
    assert not any("what nobody is to read" in prompt for prompt in prompts)


async def test_the_error_for_a_program_that_fails_at_startup_has_its_output() -> None:
    agents = [
        claude("Go.", arguments=["--no-such-flag"]),
        codex_of_npm("Go.", arguments=["--no-such-flag"]),
        aider_of_pypi("Go.", arguments=["--no-such-flag"]),
    ]
    for agent in agents:
        with pytest.raises(AgentError, match="before it called the model.*--no-such-flag"):
            await ChatAgentEnv(agent).initial_observation()


@pytest.mark.parametrize("ready", [claude, codex_of_npm, gemini, aider_of_pypi])
async def test_a_prompt_that_is_too_long_ends_as_a_context_overflow(ready: Any) -> None:
    env = ChatAgentEnv(ready("Go.", files=FILES), context_length=500)
    found = await env.initial_observation()

    assert isinstance(found, InitialObservationOverflow)
    assert found.reward == -0.1
    assert found.metrics["stop/context_overflow"] == 1.0
