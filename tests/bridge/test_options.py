"""The options of an Env: one table.

1. What may be given and what there is are the same names.
2. An unknown option, or a value that is none, is refused with what there is.
3. What is not given, or None, has its default.
"""

import dataclasses
from typing import Any

import pytest
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentClient, ChatAgentEnv, InvalidModelError
from evert.bridge.options import EnvOptions, EnvSettings, settings_of


async def agent(client: AgentClient) -> float:
    return 0.0


def test_the_options_and_the_settings_have_the_same_names() -> None:
    names = [field.name for field in dataclasses.fields(EnvSettings)]

    assert names == list(EnvOptions.__annotations__)
    documented = EnvSettings.__doc__ or ""
    assert all(f"        {name}: " in documented for name in names)


def test_what_is_not_given_has_its_default() -> None:
    assert settings_of({}) == EnvSettings()
    assert settings_of({"limits": None}).limits == RolloutLimits()
    assert settings_of({"agent_timeout": None}).agent_timeout is None
    assert settings_of({"policy_names": ["a", "b"]}).names == ("a", "b")


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    options: Any = {"agent_timout": 5}
    with pytest.raises(TypeError, match="no option 'agent_timout'. Did you mean 'agent_timeout'"):
        ChatAgentEnv(agent, **options)


def test_a_way_to_treat_cut_replies_that_is_none_is_refused() -> None:
    options: Any = {"on_truncation": "drop"}
    with pytest.raises(ValueError, match="on_truncation is 'drop'; expected 'deliver'"):
        ChatAgentEnv(agent, **options)


def test_a_model_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidModelError):
        ChatAgentEnv(agent, policy_names=[])


def test_a_new_episode_has_the_same_options() -> None:
    env = ChatAgentEnv(agent, policy_names="student", format_retries=0)

    assert env.renewed()._settings == env._settings
