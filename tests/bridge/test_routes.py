"""The route table: who answers the calls to a model name.

1. Where there is only the policy, every name reaches it through a handle.
2. As soon as other models or seats are declared, an unknown name is a 400 with the nearest one.
3. The policy may have several names, patterns among them; they are checked.
4. A failure of the agent says which names it asked for in vain.
"""

import asyncio
import contextlib
import re
from typing import Any

import openai
import pytest
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import (
    AgentClient,
    AgentError,
    AgentTimeoutError,
    ChatAgentEnv,
    InvalidDatasetError,
    InvalidModelError,
    ScriptedPolicy,
)
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.env.seats import seat_envs
from evert.bridge.episode.inbox import Inbox
from evert.bridge.episode.routes import Routes, read_policy_names, seat_model

QUESTION: list[Any] = [{"role": "user", "content": "Hi"}]


def inbox() -> Inbox[Any]:
    return Inbox("an.agent", asyncio.get_running_loop())


async def judge(request: ChatRequest) -> Reply:
    raise AssertionError(request)


class Judge(MessageCompleter):
    async def __call__(self, messages: list[Message]) -> Message:
        return {"role": "assistant", "content": "Judged."}


async def play(agent: Any, **options: Any) -> Trajectory:
    return await do_single_rollout(
        ScriptedPolicy(lambda prompt: "Policy."), ChatAgentEnv(agent, **options)
    )


async def test_every_name_reaches_a_policy_that_is_alone() -> None:
    policy = inbox()
    routes = Routes({"policy": policy}, {})

    assert routes.find("policy") is routes.find("gpt-4o") is routes.find("") is policy
    assert routes.names == ("policy",)
    assert routes.seats == {}


async def test_a_policy_with_several_names_is_still_alone() -> None:
    policy = inbox()

    assert Routes({"a": policy, "b": policy}, {}).find("c") is policy


async def test_beside_a_frozen_model_an_unknown_name_is_a_400_with_the_nearest_one() -> None:
    policy = inbox()
    routes = Routes({"policy": policy}, {"judge": judge})

    assert routes.find("policy") is policy
    assert routes.find("judge") is judge
    with pytest.raises(openai.BadRequestError) as caught:
        routes.find("jugde")
    assert str(caught.value) == (
        "There is no model 'jugde' in this episode. Did you mean 'judge'? Models: policy, judge. "
        "Ask for one of them (an agent with seats: by client.seat(name)), or give the policy that "
        "name: policy_names='jugde'."
    )
    assert caught.value.code == "model_not_found"


async def test_what_answers_instead_of_the_policy_answers_for_no_frozen_model() -> None:
    async def other(request: ChatRequest) -> Reply:
        raise AssertionError(request)

    routes = Routes({"policy": inbox(), "gpt-*": inbox()}, {"judge": judge})
    routes.instead = other

    assert routes.find("policy") is routes.find("gpt-4o") is other
    assert routes.find("judge") is judge
    assert not routes.is_frozen("policy")


async def test_a_name_like_no_other_is_a_400_without_a_guess() -> None:
    with pytest.raises(openai.BadRequestError, match=r"episode\. Models: policy, judge\."):
        Routes({"policy": inbox()}, {"judge": judge}).find("xyz")


async def test_seats_are_found_by_their_models_and_named_without_them() -> None:
    player, other = inbox(), inbox()
    routes = Routes({seat_model("player"): player, seat_model("other"): other}, {})

    assert routes.find("evert/player") is player
    assert routes.seats == {"player": player, "other": other}
    with pytest.raises(openai.BadRequestError, match="Did you mean 'evert/player'"):
        routes.find("player")


@pytest.mark.parametrize("model", [None, 5, ["policy"], "Policy"])
async def test_only_names_that_are_there_are_known(model: object) -> None:
    routes = Routes({"policy": inbox()}, {"judge": judge})

    assert routes.knows("policy")
    assert routes.knows("judge")
    assert not routes.knows(model)


# -- 3. several names ------------------------------------------------------------------------------


def test_one_name_is_a_list_of_one() -> None:
    assert read_policy_names("policy") == ("policy",)
    assert read_policy_names(["gpt-4o", "gpt-4o-mini"]) == ("gpt-4o", "gpt-4o-mini")


@pytest.mark.parametrize("names", ["", [], [""], ["a", "a"], ["a", 5], [None]])
def test_names_that_are_none_are_refused(names: Any) -> None:
    with pytest.raises(
        InvalidModelError, match="policy_names must be a model name or several different"
    ):
        read_policy_names(names)


async def test_a_policy_is_called_by_any_of_its_names_and_taken_over_by_each() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.model == "gpt-4o"
        async with openai.AsyncOpenAI(api_key="x") as own:
            for model in ("gpt-4o", "gpt-4o-mini"):
                completion = await own.chat.completions.create(model=model, messages=QUESTION)
                assert completion.choices[0].message.content == "Policy."
        completion = await client.chat.completions.create(model="judge", messages=QUESTION)
        return float(completion.choices[0].message.content == "Judged.")

    trajectory = await play(
        agent, policy_names=("gpt-4o", "gpt-4o-mini"), models={"judge": Judge()}
    )

    assert len(trajectory.transitions) == 2
    assert trajectory.transitions[-1].reward == 1.0


def test_none_of_the_policys_names_may_be_a_frozen_models() -> None:
    async def agent(client: AgentClient) -> float:
        return 0.0

    with pytest.raises(InvalidModelError, match="has the policy's own name"):
        ChatAgentEnv(agent, policy_names=("a", "b"), models={"b": Judge()})


# -- 3. patterns -----------------------------------------------------------------------------------


def test_patterns_stand_after_the_name_that_a_client_uses() -> None:
    assert read_policy_names("*") == ("policy", "*")
    assert read_policy_names(("gpt-*", "small")) == ("small", "gpt-*")


@pytest.mark.parametrize(
    ("names", "asked", "is_policy"),
    [
        ("*", "gpt-5.2", True),
        ("*", "policy", True),
        ("*", "judge", False),
        ("gpt-*", "gpt-5.2", True),
        ("gpt-*", "GPT-5.2", False),
        (("small", "*-mini"), "gpt-5-mini", True),
    ],
)
async def test_a_pattern_takes_every_name_that_no_frozen_model_has(
    names: Any, asked: str, is_policy: bool
) -> None:
    policy = inbox()
    routes = Routes(dict.fromkeys(read_policy_names(names), policy), {"judge": judge})

    assert routes.knows(asked) == (is_policy or asked == "judge")
    if routes.knows(asked):
        assert (routes.find(asked) is policy) == is_policy
    assert "*" not in "".join(routes.names)


async def test_an_agent_with_models_of_its_own_plays_whatever_they_are_called() -> None:
    async def agent() -> float:
        async with openai.AsyncOpenAI(api_key="x") as own:
            for model in ("gpt-5.2", "o9-large"):
                await own.chat.completions.create(model=model, messages=QUESTION)
            judged = await own.chat.completions.create(model="judge", messages=QUESTION)
        return float(judged.choices[0].message.content == "Judged.")

    trajectory = await play(agent, policy_names="*", models={"judge": Judge()})

    assert len(trajectory.transitions) == 2
    assert trajectory.transitions[-1].reward == 1.0


# -- 4. names asked for in vain --------------------------------------------------------------------

STRANGER = (
    "The agent asked for 'gpt-5.2'; the policy is called 'policy'. If it is to answer such calls, "
    "give it that name: policy_names='gpt-5.2'. If another model is meant, put it beside the "
    "policy: models={'gpt-5.2': ...}."
)


async def asks_elsewhere() -> float:
    # Nobody listens there: the call is not the policy's, and goes where it would have gone.
    async with openai.AsyncOpenAI(
        api_key="x", base_url="http://127.0.0.1:9/v1", max_retries=0
    ) as own:
        await own.chat.completions.create(model="gpt-5.2", messages=QUESTION)
    return 1.0


async def test_an_agent_that_fails_after_asking_for_another_model_is_told_of_the_name() -> None:
    with pytest.raises(AgentError, match=re.escape(f"Connection error. {STRANGER}")):
        await play(asks_elsewhere)


async def test_a_scored_failure_says_so_in_its_log() -> None:
    trajectory = await play(asks_elsewhere, on_agent_error=-1.0)

    assert trajectory.transitions[-1].reward == -1.0
    assert str(trajectory.transitions[-1].logs["agent_error"]).endswith(STRANGER)


async def test_so_does_an_agent_that_makes_do_without_the_model() -> None:
    async def agent() -> float:
        with contextlib.suppress(openai.APIConnectionError):
            await asks_elsewhere()
        return 0.5

    trajectory = await play(agent)

    assert trajectory.transitions[-1].metrics["no_llm_call"] == 1.0
    assert trajectory.transitions[-1].logs["no_llm_call"] == f"No model call came here. {STRANGER}"


async def test_and_one_that_waits_for_ever() -> None:
    async def agent() -> float:
        with contextlib.suppress(openai.APIConnectionError):
            await asks_elsewhere()
        await asyncio.Event().wait()
        return 0.5

    with pytest.raises(AgentTimeoutError, match=re.escape(STRANGER)):
        await play(agent, agent_timeout=0.2)


async def test_a_failure_that_names_no_stranger_is_left_as_it_is() -> None:
    async def agent(client: AgentClient) -> float:
        raise ValueError("no such table")

    with pytest.raises(AgentError, match="model calls: no such table$"):
        await play(agent)


async def test_the_policys_name_beside_seats_is_refused() -> None:
    with pytest.raises(InvalidDatasetError, match=r"Leave policy_names out.*'evert/player'"):
        seat_envs(asks_elsewhere, ("player", "judge"), policy_names="gpt-5.2")
