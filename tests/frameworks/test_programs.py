"""Real programs in other languages as agents, over the loopback server.

1. A Node.js script with the npm package ``openai`` plays an episode: whole, streamed, with a tool.
2. Coding agents from npm do a turn: Codex (responses, streamed) and Claude Code (messages).

``frameworks/make_programs.py`` installs them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ProcessAgent, ScriptedPolicy

PROGRAMS = Path(__file__).parent.parent.parent / ".frameworks" / "programs"

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


@pytest.fixture
def program() -> Callable[[str], str]:
    """Path of an installed program; a missing one is a failure."""

    def find(name: str) -> str:
        path = PROGRAMS / "node_modules" / ".bin" / name
        assert path.exists(), f"{path} is missing: run `make frameworks`"
        return str(path)

    return find


async def play(agent: ProcessAgent, replies: list[str], task: Any) -> tuple[Trajectory, Any]:
    policy = ScriptedPolicy(replies)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, task))
    said = [transition.ac.tokens for transition in trajectory.transitions]
    assert said == policy.actions
    return trajectory, trajectory.transitions[-1]


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


async def test_codex_does_a_turn(program: Callable[[str], str], tmp_path: Path) -> None:
    provider = 'model_providers.evert={name="evert",base_url="{base_url}",env_key="OPENAI_API_KEY"}'
    command = [program("codex"), "exec", "--skip-git-repo-check", "--sandbox", "read-only"]
    options = ["-m", "{model}", "-c", 'model_provider="evert"', "-c", provider, "{task}"]
    agent = ProcessAgent(
        [*command, *options],
        env={"CODEX_HOME": str(tmp_path)},
        reward=lambda result, task: float("Forty-two." in result.stdout),
    )

    trajectory, last = await play(agent, ["Forty-two."], "What is six times seven?")

    assert last.reward == 1.0, last.logs
    assert len(trajectory.transitions) == 1
    assert last.metrics["tools/offered"] > 0


async def test_claude_code_does_a_turn(program: Callable[[str], str], tmp_path: Path) -> None:
    agent = ProcessAgent(
        [program("claude"), "-p", "{task}", "--model", "{model}"],
        env={"HOME": str(tmp_path), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        reward=lambda result, task: float("Forty-two." in result.stdout),
    )

    trajectory, last = await play(agent, ["Forty-two."], "What is six times seven?")

    assert last.reward == 1.0, last.logs
    assert len(trajectory.transitions) == 1
    assert last.metrics["tools/offered"] > 0
