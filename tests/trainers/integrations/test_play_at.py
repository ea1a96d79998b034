"""``play_at``: a function answers the agent's calls, for frameworks that record the tokens."""

import asyncio
from typing import Any

import openai
import pytest
from tests.kit import ask, ask_blocking

from evert import AgentError, Outcome, RewardError
from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.trainers.integrations.verifiers.answered_outside import play_at


async def yes(request: ChatRequest) -> Reply:
    if request.stop:
        raise bad_request("no stops there")
    said: Any = {"role": "assistant", "content": "yes"}
    return read_reply(said, truncated=False, call_ids="c", prompt_tokens=1, completion_tokens=1)


async def three_at_once(client: Any, task: int) -> Outcome:
    said = await asyncio.gather(*(ask(client) for _ in range(3)))
    client.reward(0.5)
    client.metric("asked", 3.0)
    client.log(said="".join(said))
    return Outcome(float(task), {"right": 1.0}, truncated=True)


async def test_concurrent_calls_are_answered_concurrently() -> None:
    met = asyncio.Barrier(3)

    async def together(request: ChatRequest) -> Reply:
        await met.wait()
        return await yes(request)

    outcome = await play_at(together, three_at_once, 2)

    assert outcome == Outcome(2.5, {"asked": 3.0, "right": 1.0}, {"said": "yesyesyes"}, True)


async def test_blocking_agents_their_own_clients_and_frozen_models_work() -> None:
    def blocks(client: Any) -> float:
        return float(ask_blocking(client) == "yes")

    def own_client(task: int) -> float:
        url = "http://127.0.0.1:9"
        client: Any = openai.OpenAI(api_key="none", base_url=url, max_retries=0)
        return float(ask_blocking(client, model="gpt-4o") == "yes")

    async def asks_another(client: Any) -> float:
        return float(await ask(client, model="judge") == "No.")

    assert await play_at(yes, blocks) == Outcome(1.0)
    assert await play_at(yes, own_client, 1, policy_names="gpt-4o") == Outcome(1.0)
    assert await play_at(yes, asks_another, models={"judge": lambda messages: "No."}) == Outcome(1)


async def test_failures_raise_the_same_errors_as_an_env() -> None:
    async def refused(client: Any) -> None:
        await ask(client, stop=["."])

    async def unrewarded(client: Any) -> None:
        pass

    with pytest.raises(AgentError, match="no stops there"):
        await play_at(yes, refused)
    with pytest.raises(RewardError, match="ended without a reward"):
        await play_at(yes, unrewarded)


async def test_a_cancelled_episode_leaves_nothing_behind() -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def waits(request: ChatRequest) -> Reply:
        asked.set()
        await never.wait()
        raise AssertionError

    before = asyncio.all_tasks()
    playing = asyncio.create_task(play_at(waits, three_at_once, 1))
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing

    assert asyncio.all_tasks() == before
