"""Tests the agent without a model, using a scripted policy."""

import asyncio

from agent import agent
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy, check_env


def reward_of(reply):
    policy, env = ScriptedPolicy([reply]), ChatAgentEnv(agent, 7)
    trajectory = asyncio.run(do_single_rollout(policy, env))
    return sum(transition.reward for transition in trajectory.transitions)


def test_the_right_answer_is_rewarded():
    assert reward_of("I am 7.") == 1.0


def test_other_answers_are_not():
    assert reward_of("I am not 7.") == -1.0
    assert reward_of("Seven?") == 0.0


def test_the_agent_keeps_the_rules():
    check_env(ChatAgentEnv(agent, 7))
