"""The rollout's responses and errors, as seen by users of the frameworks."""

from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentError, ChatAgentEnv, ScriptedPolicy
from evert.trainers.engine.common.network import no_network

pytestmark = [  # from the frameworks
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ImportWarning"),
]

HELLO = [{"role": "user", "content": "Hello?"}]


async def langchain():
    from langchain_openai import ChatOpenAI

    await ChatOpenAI(model="gpt-5.2", api_key="x").ainvoke("Hello?")


async def openai_agents():
    from agents import Agent, Runner, set_default_openai_key

    set_default_openai_key("x", use_for_tracing=False)
    await Runner.run(Agent(name="someone", model="gpt-5.2"), "Hello?")


async def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(api_key="x"))
    await Agent(model).run("Hello?")


async def litellm():
    import litellm as library

    await library.acompletion(model="openai/gpt-5.2", messages=HELLO, api_key="x")


def dspy_blocking():
    import dspy

    dspy.LM("openai/gpt-5.2", api_key="x", cache=False)("Hello?")


async def dspy():
    import dspy as library

    await library.LM("openai/gpt-5.2", api_key="x", cache=False).acall("Hello?")


def crewai():
    from crewai import LLM

    LLM(model="openai/gpt-5.2", api_key="x").call("Hello?")


OTHERS = {
    "openai3": [langchain, openai_agents, pydantic_ai],
    "openai2": [langchain, litellm, dspy, dspy_blocking, crewai],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    environment = metafunc.config.getoption("environment")
    if "stranger" in metafunc.fixturenames:
        metafunc.parametrize("stranger", OTHERS[environment], ids=lambda one: one.__name__)
    if "confident" in metafunc.fixturenames:
        metafunc.parametrize("confident", CONFIDENT[environment], ids=lambda one: one.__name__)


async def test_the_error_for_a_call_to_another_model_names_both_models(stranger: Any) -> None:
    with no_network(), pytest.raises(AgentError) as caught:
        await ChatAgentEnv(stranger).initial_observation()

    assert "Connection error" not in str(caught.value)
    assert "The agent requested 'gpt-5.2'; the policy is called 'policy'." in str(caught.value)
    assert "policy_names='gpt-5.2'" in str(caught.value)


async def langchain_logprobs():
    from langchain_openai import ChatOpenAI

    said = await ChatOpenAI(model="policy", api_key="x").bind(logprobs=True).ainvoke("Hello?")
    return said.response_metadata["logprobs"]["content"]


async def langchain_streamed_logprobs():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="policy", api_key="x").bind(logprobs=True)
    known = [piece.response_metadata.get("logprobs") async for piece in model.astream("Hello?")]
    return [token for logprobs in known if logprobs for token in logprobs["content"]]


async def litellm_logprobs():
    import litellm as library

    said = await library.acompletion(
        model="openai/policy", messages=HELLO, api_key="x", logprobs=True
    )
    return [token.model_dump() for token in said.choices[0].logprobs.content]


CONFIDENT = {
    "openai3": [langchain_logprobs, langchain_streamed_logprobs],
    "openai2": [langchain_logprobs, langchain_streamed_logprobs, litellm_logprobs],
}


async def test_frameworks_pass_on_the_log_probabilities(confident: Any) -> None:
    async def agent():
        tokens = await confident()
        assert "".join(token["token"] for token in tokens) == "So it is, for all of us.<|im_end|>"
        return sum(token["logprob"] for token in tokens) / len(tokens)

    policy = ScriptedPolicy(["So it is, for all of us."], logprob=-0.25)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent))

    assert trajectory.transitions[-1].reward == -0.25
