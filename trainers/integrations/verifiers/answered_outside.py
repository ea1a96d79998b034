"""Run an agent while another framework's endpoint answers its calls and records the tokens.

evert neither renders nor samples in this case. Everything else works as usual: agents can be
blocking or async, use a client object or an SDK, and return rewards, metrics, logs and errors.
"""

from typing import Any, Unpack

from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, InitialObservationOverflow

from evert.bridge.chat.request import FrozenAnswer
from evert.bridge.env.endings import NO_CALL, TRUNCATED
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import NO_TASK, Agent, Outcome
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.inbox import Inbox
from evert.bridge.errors import EvertError

REPORT = ("lineages", "drift", "tools_offered", NO_CALL, STOP_METRIC_PREFIX)
"""Prefixes of metrics to drop, because they describe the Env's tokens or how the Env ended."""


async def play_at(
    answer: FrozenAnswer,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Outcome:
    """Run an agent until it returns, and return its total reward, metrics and logs.

    ``answer`` returns the policy's replies. Options related to tokens have no effect.
    """
    env = _Elsewhere(agent, task, **options)
    env.answer = answer
    try:
        end = await env.initial_observation()
    finally:
        await env.close()
    if not isinstance(end, InitialObservationOverflow):  # a call for a seat
        raise EvertError(
            "The agent called a seat, but seats are not supported here. Call the policy instead."
        )
    metrics = {k: value for k, value in end.metrics.items() if not k.startswith(REPORT)}
    logs = {key: value for key, value in end.logs.items() if key != NO_CALL}
    truncated = f"{STOP_METRIC_PREFIX}{TRUNCATED}" in end.metrics
    return Outcome(end.reward, metrics, logs, truncated)


class _Elsewhere(ChatAgentEnv):
    answer: FrozenAnswer

    async def _begin(self) -> tuple[Episode, Inbox[Any]]:
        episode, inbox = await super()._begin()
        episode.routes.instead = self.answer  # must be set before the agent's first call
        return episode, inbox
