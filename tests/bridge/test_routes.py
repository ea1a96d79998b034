"""The route table: who answers the calls to a model name.

1. Where there is only the policy, every name reaches it through a handle.
2. As soon as other models or seats are declared, an unknown name is a 400 with the nearest one.
3. The policy may have several names; they are checked.
"""

import asyncio
from typing import Any

import openai
import pytest
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, ChatAgentEnv, InvalidModelError, ScriptedPolicy
from evert.bridge.inbox import Inbox
from evert.bridge.messages import Reply
from evert.bridge.requests import ChatRequest
from evert.bridge.routes import Routes, policy_names, seat_model

QUESTION: list[Any] = [{"role": "user", "content": "Hi"}]


def inbox() -> Inbox:
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
        "Ask for one of them (an agent with seats: by client.seat(name))."
    )
    assert caught.value.code == "model_not_found"


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
    assert policy_names("policy") == ("policy",)
    assert policy_names(["gpt-4o", "gpt-4o-mini"]) == ("gpt-4o", "gpt-4o-mini")


@pytest.mark.parametrize("names", ["", [], [""], ["a", "a"], ["a", 5], [None]])
def test_names_that_are_none_are_refused(names: Any) -> None:
    with pytest.raises(InvalidModelError, match="model_name must be a name or several different"):
        policy_names(names)


async def test_a_policy_is_called_by_any_of_its_names_and_taken_over_by_each() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.model == "gpt-4o"
        async with openai.AsyncOpenAI(api_key="x") as own:
            for model in ("gpt-4o", "gpt-4o-mini"):
                completion = await own.chat.completions.create(model=model, messages=QUESTION)
                assert completion.choices[0].message.content == "Policy."
        completion = await client.chat.completions.create(model="judge", messages=QUESTION)
        return float(completion.choices[0].message.content == "Judged.")

    trajectory = await play(agent, model_name=("gpt-4o", "gpt-4o-mini"), models={"judge": Judge()})

    assert len(trajectory.transitions) == 2
    assert trajectory.transitions[-1].reward == 1.0


def test_none_of_the_policys_names_may_be_a_frozen_models() -> None:
    async def agent(client: AgentClient) -> float:
        return 0.0

    with pytest.raises(InvalidModelError, match="has the policy's own name"):
        ChatAgentEnv(agent, model_name=("a", "b"), models={"b": Judge()})
