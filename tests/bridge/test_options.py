"""The options of an Env: one table, by which they are given, refused and left out.

An agent may bring options of its own; a user's come before them.
"""

import dataclasses
import functools
from typing import Any

import pytest
from tests.kit import asks
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentClient, ChatAgentEnv, InvalidAgentError, InvalidModelError
from evert.bridge.env.options import EnvOptions, EnvSettings, own_options, settings_of


def test_the_options_and_the_settings_have_the_same_names() -> None:
    names = [field.name for field in dataclasses.fields(EnvSettings)]

    assert names == list(EnvOptions.__annotations__)
    documented = EnvSettings.__doc__ or ""
    assert all(f"        {name}: " in documented for name in names)


def test_what_is_not_given_or_none_has_its_default_and_a_new_episode_has_the_same() -> None:
    assert settings_of({}) == EnvSettings()
    assert settings_of({"limits": None}).limits == RolloutLimits()
    assert settings_of({"agent_timeout": None}).agent_timeout is None
    assert settings_of({"policy_names": ["a", "b"]}).names == ("a", "b")
    env = ChatAgentEnv(asks, policy_names="student", format_retries=0)
    assert env.renewed()._settings == env._settings


class Demanding:
    env_options: Any = {"policy_names": "gpt-5", "format_retries": 7}  # noqa: RUF012

    async def __call__(self, client: AgentClient) -> float:
        return float(client.model == "gpt-5")


class Mistyped(Demanding):
    env_options: Any = {"policy_name": "gpt-5"}  # noqa: RUF012


class Wrong(Demanding):
    env_options = "gpt-5"


async def test_an_agent_may_bring_options_of_its_own_after_those_that_a_user_passes() -> None:
    brought: Any = await ChatAgentEnv(Demanding()).initial_observation()
    passed = ChatAgentEnv(Demanding(), policy_names="gpt-6").renewed()
    given: Any = await passed.initial_observation()

    assert (brought.reward, given.reward) == (1.0, 0.0)
    assert own_options(functools.partial(Demanding())) == Demanding.env_options


@pytest.mark.parametrize(
    ("agent", "given", "error", "said"),
    [
        (asks, {"agent_timout": 5}, TypeError, "'agent_timout'. Did you mean 'agent_timeout'"),
        (asks, {"on_truncation": "drop"}, ValueError, "on_truncation is 'drop'; expected 'deliv"),
        (asks, {"policy_names": []}, InvalidModelError, "policy_names must be"),
        (Mistyped(), {}, TypeError, "'policy_name'. Did you mean 'policy_names'"),
        (Wrong(), {}, InvalidAgentError, "Wrong has env_options='gpt-5'; expected a dict"),
    ],
)
def test_what_is_no_option_or_no_value_of_it_is_refused_with_what_there_is(
    agent: Any, given: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        ChatAgentEnv(agent, **given)
