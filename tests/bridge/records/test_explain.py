"""``explain`` prints a rollout with the caller, new messages, action and reward of each turn."""

import asyncio
import io
import unicodedata
from typing import Any

import tinker
from rich.console import Console
from tests.kit import Patch, Shown, ask, assistant, play, policy_of, system, talker, tool, user
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, ChatAgentGroupBuilder, explain


def explained(trajectory: Trajectory, width: int = 200) -> str:
    out = io.StringIO()
    explain(trajectory, console=Console(file=out, width=width, highlight=False))
    return out.getvalue()


async def explanation(agent: Any, *replies: str) -> str:
    return explained(await play(agent, *replies))


async def test_a_linear_conversation_is_shown_from_top_to_bottom() -> None:
    async def agent(client: AgentClient) -> float:
        messages = [user("Guess.")]
        for hint in ("Too low", "Right"):
            messages += [assistant(await ask(client, *messages)), user(hint)]
            client.log(hint=hint)
            client.metric("tries", len(messages) // 2)
        return 1.0

    text = await explanation(agent, "512", "777")

    assert "turn 0  called by evert agent" in text
    assert "lineage 0" in text
    assert text.count("| Guess.") == 1  # only new messages are shown
    assert "  new     | <|im_start|>user" in text
    assert "  sampled | 512<|im_end|>" in text
    assert "  continues turn 0" in text
    assert "| Too low<|im_end|>" in text
    assert "reward 0  tries=1  hint: Too low" in text
    assert "reward 1  tries=2  hint: Right" in text
    assert text.rstrip().endswith("2 turns, reward 1, completed; 1 datum")


async def test_forks_handoffs_sub_agents_and_broken_calls_are_shown() -> None:
    async def forks(client: AgentClient) -> float:
        look = [tool("look")]
        reply = await ask(client, "Guess.", tools=look)
        await ask(client, user("Guess."), assistant(f"Say {reply}"), user("Again."), tools=look)
        return 0.0

    async def hands_off(client: AgentClient) -> float:
        reply = await ask(client, system("You write."), user("A poem."))
        await ask(client, system("You criticise."), user("A poem."), assistant(reply))
        return 0.0

    async def has_sub_agents(client: AgentClient) -> float:
        async with asyncio.TaskGroup() as group:
            for name in ("writer", "critic"):
                group.create_task(ask(client, name), name=name)
        return 0.0

    text = await explanation(forks, "512", '<tool_call>\n{"name": \n</tool_call>')
    assert "starts a new sequence (drift: history); the first " in text
    assert "tokens are the same as in turn 0" in text
    assert "2 data, drift/history 1" in text
    assert "parse_error=1" in text
    assert "tools/calls_unparsed 1" in text
    text = await explanation(hands_off, "Roses.", "Bad.")
    assert text.rstrip().endswith("2 turns, reward 0, completed; 2 data, handoffs 1")
    assert "handoffs=1" not in text
    text = await explanation(has_sub_agents, "a", "b")
    assert "called by writer" in text
    assert "called by critic" in text


async def test_texts_are_never_interpreted_as_markup_or_terminal_commands() -> None:
    clear = "\x1b[2J\x1b]0;owned\x07\x9b31m"

    async def agent(client: AgentClient) -> float:
        await ask(client, f"[bold]Hi[/bold]{clear}")
        client.log(note=f"a{clear}b")
        return 1.0

    text = await explanation(agent, f"[red]Yes[/red]{clear}")

    assert not any(unicodedata.category(letter) == "Cc" for letter in text if letter != "\n")
    assert text.count("\N{SYMBOL FOR ESCAPE}[2J") == 3  # in the prompt, the reply and the log
    assert "[bold]Hi[/bold]" in text
    assert "[red]Yes[/red]" in text


async def test_long_lines_are_only_wrapped_in_a_terminal(capsys: Shown, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    async def agent(client: AgentClient) -> float:
        await ask(client, "word " * 100 + "end")
        return 0.0

    trajectory = await play(agent, "so " * 100)
    explain(trajectory)

    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("word " * 100 + "end<|im_end|>") for line in lines)
    assert "  sampled | " + "so " * 100 + "<|im_end|>" in lines
    assert max(map(len, explained(trajectory, 60).splitlines())) <= 60


async def test_the_summary_is_shown_for_sorted_turns_and_without_turns() -> None:
    async def agent(client: AgentClient) -> float:
        main, sub = [user("main")], [user("sub")]
        for messages in (main, sub, main):
            messages += [assistant(await ask(client, *messages)), user("more")]
        return await talker(0)(client)

    group = await do_group_rollout(ChatAgentGroupBuilder(agent), policy_of())

    assert "3 turns, reward 1, completed; 2 data" in explained(group.trajectories_G[0])
    assert explained(Trajectory([], tinker.ModelInput.empty())) == "0 turns, reward 0\n"


async def test_an_image_is_shown_by_its_type() -> None:
    trajectory = await play(talker(1), "A cat.")
    image = tinker.types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=3)
    turn = trajectory.transitions[0]
    turn.ob = tinker.ModelInput(chunks=[*turn.ob.chunks, image, image])

    assert explained(trajectory).count("[ImageChunk]") == 2
