"""The options of an Env: one table.

1. What may be given and what there is are the same names.
2. An unknown option, or a value that is none, is refused with what there is.
3. What is not given, or None, has its default.
4. An agent may bring options of its own; a user's come before them.
"""

import dataclasses
import functools
from typing import Any

import pytest
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import InitialObservationOverflow

from evert import AgentClient, ChatAgentEnv, InvalidAgentError, InvalidModelError
from evert.bridge.env.options import EnvOptions, EnvSettings, own_options, settings_of


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


# -- options that an agent brings ------------------------------------------------------------------


class Demanding:
    env_options: Any = {"policy_names": "gpt-5", "format_retries": 7}  # noqa: RUF012

    async def __call__(self, client: AgentClient) -> float:
        return float(client.model == "gpt-5")


async def test_an_agent_may_bring_options_of_its_own() -> None:
    found = await ChatAgentEnv(Demanding()).initial_observation()

    assert isinstance(found, InitialObservationOverflow)
    assert found.reward == 1.0


async def test_what_a_user_passes_comes_before_them() -> None:
    found = await ChatAgentEnv(Demanding(), policy_names="gpt-6").renewed().initial_observation()

    assert isinstance(found, InitialObservationOverflow)
    assert found.reward == 0.0


def test_they_come_with_a_partial_too_and_are_checked_like_any() -> None:
    class Mistyped(Demanding):
        env_options = {"policy_name": "gpt-5"}  # noqa: RUF012

    assert own_options(functools.partial(Demanding())) == Demanding.env_options
    with pytest.raises(TypeError, match="no option 'policy_name'. Did you mean 'policy_names'"):
        ChatAgentEnv(Mistyped())


def test_options_that_are_no_dict_are_refused() -> None:
    class Wrong(Demanding):
        env_options = "gpt-5"

    with pytest.raises(InvalidAgentError, match="Wrong has env_options='gpt-5'; expected a dict"):
        ChatAgentEnv(Wrong())
