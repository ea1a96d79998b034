"""``explain`` shows a rollout: who called, what was new, what was sampled, what it earned."""

import asyncio
import io
import unicodedata
from typing import Any

import pytest
from rich.console import Console
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout

from evert import AgentClient, ChatAgentEnv, ChatAgentGroupBuilder, ScriptedPolicy, explain


async def shown(agent: Any, replies: list[str], **options: Any) -> str:
    trajectory = await do_single_rollout(ScriptedPolicy(replies), ChatAgentEnv(agent, **options))
    out = io.StringIO()
    explain(trajectory, console=Console(file=out, width=200, highlight=False))
    return out.getvalue()


async def ask(client: AgentClient, messages: list[dict[str, Any]]) -> str:
    completion = await client.chat.completions.create(messages=messages)
    return completion.choices[0].message.content or ""


async def test_a_linear_conversation_reads_from_top_to_bottom() -> None:
    async def agent(client: AgentClient) -> float:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Guess."}]
        for hint in ("Too low", "Right"):
            messages.append({"role": "assistant", "content": await ask(client, messages)})
            messages.append({"role": "user", "content": hint})
            client.log(hint=hint)
            client.metric("tries", len(messages) // 2)
        return 1.0

    text = await shown(agent, ["512", "777"])

    assert "turn 0  called by evert agent" in text
    assert "lineage 0" in text
    assert text.count("| Guess.") == 1  # only what is new is shown
    assert "  new     | <|im_start|>user" in text
    assert "  sampled | 512<|im_end|>" in text
    assert "  continues turn 0" in text
    assert "| Too low<|im_end|>" in text
    assert "reward 0  tries=1  hint: Too low" in text
    assert "reward 1  tries=2  hint: Right" in text
    assert text.rstrip().endswith("2 turns, reward 1, completed; 1 datum")


async def test_a_fork_says_where_and_why() -> None:
    async def agent(client: AgentClient) -> float:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Guess."}]
        messages.append({"role": "assistant", "content": "Say " + await ask(client, messages)})
        messages.append({"role": "user", "content": "Again."})
        await ask(client, messages)
        return 0.0

    text = await shown(agent, ["512", "777"])

    assert "begins a new sequence (drift: history); its first " in text
    assert "tokens are those of turn 0" in text
    assert "2 data, drift/history 1" in text


async def test_a_handoff_is_in_the_summary() -> None:
    async def agent(client: AgentClient) -> float:
        history: list[dict[str, Any]] = [{"role": "user", "content": "A poem."}]
        for prompt in ("You write.", "You criticise."):
            said = await ask(client, [{"role": "system", "content": prompt}, *history])
            history.append({"role": "assistant", "content": said})
        return 0.0

    text = await shown(agent, ["Roses.", "Bad."])

    assert text.rstrip().endswith("2 turns, reward 0, completed; 2 data, handoffs 1")
    assert "handoffs=1" not in text


async def test_sub_agents_are_named() -> None:
    async def agent(client: AgentClient) -> float:
        async with asyncio.TaskGroup() as group:
            for name in ("writer", "critic"):
                messages = [{"role": "user", "content": name}]
                group.create_task(ask(client, messages), name=name)
        return 0.0

    text = await shown(agent, ["a", "b"])

    assert "called by writer" in text
    assert "called by critic" in text


async def test_it_is_plain_text_where_there_is_no_terminal() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, [{"role": "user", "content": "[bold]not markup[/bold]"}])
        return 0.0

    text = await shown(agent, ["[red]nor this[/red]"])

    assert "\x1b" not in text
    assert "[bold]not markup[/bold]" in text
    assert "[red]nor this[/red]" in text


async def test_a_long_line_is_one_line_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    async def agent(client: AgentClient) -> float:
        await ask(client, [{"role": "user", "content": "word " * 100 + "end"}])
        return 0.0

    trajectory = await do_single_rollout(ScriptedPolicy(["so " * 100]), ChatAgentEnv(agent))
    explain(trajectory)

    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("word " * 100 + "end<|im_end|>") for line in lines)
    assert "  sampled | " + "so " * 100 + "<|im_end|>" in lines


async def test_a_console_of_ones_own_wraps_at_its_width() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, [{"role": "user", "content": "word " * 100}])
        return 0.0

    trajectory = await do_single_rollout(ScriptedPolicy(["so"]), ChatAgentEnv(agent))
    out = io.StringIO()
    explain(trajectory, console=Console(file=out, width=60, highlight=False))

    assert max(map(len, out.getvalue().splitlines())) <= 60


async def test_tools_and_parse_errors_are_in_the_summary() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def agent(client: AgentClient) -> float:
        messages = [{"role": "user", "content": "Look."}]
        await client.chat.completions.create(messages=messages, tools=[tool])
        return 0.0

    text = await shown(agent, ['<tool_call>\n{"name": \n</tool_call>'])

    assert "parse_error=1" in text
    assert "tools/calls_unparsed 1" in text


async def test_an_episode_without_a_turn_is_explained_too() -> None:
    import tinker
    from tinker_cookbook.rl.types import Trajectory

    out = io.StringIO()
    explain(Trajectory([], tinker.ModelInput.empty()), console=Console(file=out))

    assert out.getvalue() == "0 turns, reward 0\n"


async def test_the_end_is_said_where_the_turns_are_in_lineage_order() -> None:
    async def agent(client: AgentClient) -> float:
        main: list[Any] = [{"role": "user", "content": "main"}]
        sub: list[Any] = [{"role": "user", "content": "sub"}]
        for messages in (main, sub, main):
            completion = await client.chat.completions.create(messages=messages)
            messages.append({"role": "assistant", "content": completion.choices[0].message.content})
            messages.append({"role": "user", "content": "more"})
        return 1.0

    builder = ChatAgentGroupBuilder(agent)
    group = await do_group_rollout(builder, ScriptedPolicy(lambda prompt: "x"))
    out = io.StringIO()
    explain(group.trajectories_G[0], console=Console(file=out, width=200, highlight=False))

    assert "3 turns, reward 1, completed; 2 data" in out.getvalue()


async def test_nobodys_words_steer_the_terminal() -> None:
    clear = "\x1b[2J\x1b]0;owned\x07\x9b31m"

    async def agent(client: AgentClient) -> float:
        await ask(client, [{"role": "user", "content": f"Hi{clear}"}])
        client.log(note=f"a{clear}b")
        return 1.0

    text = await shown(agent, [f"Yes{clear}"])

    assert not any(unicodedata.category(letter) == "Cc" for letter in text if letter != "\n")
    assert text.count("\N{SYMBOL FOR ESCAPE}[2J") == 3  # of the prompt, the reply and the log
