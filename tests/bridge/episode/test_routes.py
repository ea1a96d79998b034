"""The route table, which determines who answers calls to a model name."""

import asyncio
import contextlib
import re
from typing import Any

import openai
import pytest
from tests.kit import ask, assert_says, play, reward

from evert import (
    AgentClient,
    AgentError,
    AgentTimeoutError,
    ChatAgentEnv,
    InvalidDatasetError,
    InvalidModelError,
)
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.env.seats import seat_envs
from evert.bridge.episode.inbox import Inbox
from evert.bridge.episode.routes import Routes, read_policy_names


def inbox() -> Inbox[Any]:
    return Inbox("an.agent", asyncio.get_running_loop(), (), ())


async def judge(request: ChatRequest) -> Reply:
    raise AssertionError(request)


def judges(messages: Any) -> str:
    return "Judged."


async def test_the_400_for_an_unknown_model_name_suggests_the_closest_name() -> None:
    policy = inbox()
    routes = Routes({"policy": policy}, {"judge": judge})

    assert (routes.find("policy"), routes.find("judge")) == (policy, judge)
    assert routes.knows("policy")
    assert routes.knows("judge")
    unknown: list[Any] = [None, 5, ["policy"], "Policy"]
    assert not any(map(routes.knows, unknown))
    with pytest.raises(openai.BadRequestError) as caught:
        routes.find("jugde")
    assert_says(caught.value, "no model 'jugde' in this episode. Did you mean 'judge'?")
    assert_says(caught.value, "models: policy, judge.", "client.seat(name)", "policy_names='jugde'")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match=r"Available models: policy, judge\."):
        routes.find("xyz")  # not similar to any name
    for names, name in (("*", "gpt-5"), ("gpt-*", "gpt-5"), (("small", "*-mini"), "5-mini")):
        routes = Routes(dict.fromkeys(read_policy_names(names), policy), {"judge": judge})
        assert routes.find(name) is policy, "a pattern matches all names except frozen models'"
        assert routes.find("judge") is judge
        assert "*" not in "".join(routes.names)
        assert routes.knows("GPT-5") == (names == "*")


def test_policy_names_are_read_and_checked() -> None:
    assert read_policy_names("policy") == ("policy",)
    assert read_policy_names(["gpt-4o", "gpt-4o-mini"]) == ("gpt-4o", "gpt-4o-mini")
    assert read_policy_names("*") == ("policy", "*"), "the first name is the client's model name"
    assert read_policy_names(("gpt-*", "small")) == ("small", "gpt-*")
    wrong: list[Any] = ["", [], [""], ["a", "a"], ["a", 5], [None]]
    for names in wrong:
        with pytest.raises(InvalidModelError, match="must be a model name or a list of unique"):
            read_policy_names(names)
    with pytest.raises(InvalidModelError, match="uses the name of the policy"):
        ChatAgentEnv(asks_elsewhere, policy_names=("a", "b"), models={"b": judges})
    with pytest.raises(InvalidDatasetError, match=r"Omit policy_names.*'evert/player'"):
        seat_envs(asks_elsewhere, ("player", "judge"), policy_names="gpt-5.2")


@pytest.mark.parametrize("names", [("gpt-5.2", "o9-large"), "*"])
async def test_a_policy_can_be_called_and_taken_over_by_any_of_its_names(names: Any) -> None:
    async def agent(client: AgentClient) -> float:
        texts: list[str] = []
        async with openai.AsyncOpenAI(api_key="x") as sdk:
            for handle in (sdk, client, client.openai):
                models = ("gpt-5.2", "o9-large", "judge")
                texts += [await ask(handle, model=model) for model in models]  # type: ignore[arg-type]
        return float(texts == ["Fine.", "Fine.", "Judged."] * 3)

    trajectory = await play(agent, policy_names=names, models={"judge": judges})

    assert (len(trajectory.transitions), reward(trajectory)) == (6, 1.0)

    async def written_for_another(client: AgentClient) -> float:
        return float(await ask(client, model="gpt-4o") == "Fine.")

    assert reward(await play(written_for_another)) == 1.0, "without other models, any name works"


STRANGER = (
    "The agent requested 'gpt-5.2'; the policy is called 'policy'. To send these calls to the "
    "policy, set policy_names='gpt-5.2'. To send them to another model, declare it with "
    "models={'gpt-5.2': ...}."
)


async def asks_elsewhere() -> float:
    # This call is not for the policy, so it goes to its real address, where nothing is listening.
    url = "http://127.0.0.1:9/v1"
    async with openai.AsyncOpenAI(api_key="x", base_url=url, max_retries=0) as sdk:
        await ask(sdk, model="gpt-5.2")  # type: ignore[arg-type]
    return 1.0


async def test_the_error_after_a_call_to_another_model_mentions_its_name() -> None:
    with pytest.raises(AgentError, match=re.escape(f"Connection error. {STRANGER}")):
        await play(asks_elsewhere)

    trajectory = await play(asks_elsewhere, on_agent_error=-1.0)
    assert reward(trajectory) == -1.0
    assert str(trajectory.transitions[-1].logs["agent_error"]).endswith(STRANGER)

    async def fails_otherwise(client: AgentClient) -> float:
        raise ValueError("no such table")

    with pytest.raises(AgentError, match="model calls: no such table$"):
        await play(fails_otherwise)

    async def makes_do() -> float:
        with contextlib.suppress(openai.APIConnectionError):
            await asks_elsewhere()
        return 0.5

    async def waits() -> float:
        await makes_do()
        await asyncio.Event().wait()
        return 0.5

    [turn] = (await play(makes_do)).transitions
    assert turn.metrics["no_llm_call"] == 1.0
    assert turn.logs["no_llm_call"] == f"No model call arrived. {STRANGER}"
    with pytest.raises(AgentTimeoutError, match=re.escape(STRANGER)):
        await play(waits, agent_timeout=2.0)
