"""Plays an agent and has another framework's endpoint answer its calls and keep the tokens.

evert does not render or sample. Otherwise the agent runs as usual: blocking or async, with a client
object or an SDK, with rewards, metrics, logs and errors.
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
"""Prefixes of metrics about an Env's tokens and ending, which are left out here."""


async def play_at(
    answer: FrozenAnswer,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Outcome:
    """Play an agent to its end; return the sum of its rewards, its metrics and its logs.

    ``answer`` returns the policy's reply to a request. Options that concern tokens have no effect.
    """
    env = _Elsewhere(agent, task, **options)
    env.answer = answer
    try:
        end = await env.initial_observation()
    finally:
        await env.close()
    if not isinstance(end, InitialObservationOverflow):  # a call for a seat
        raise EvertError("This agent called a seat, but there are no seats. Call the policy.")
    metrics = {k: value for k, value in end.metrics.items() if not k.startswith(REPORT)}
    logs = {key: value for key, value in end.logs.items() if key != NO_CALL}
    truncated = f"{STOP_METRIC_PREFIX}{TRUNCATED}" in end.metrics
    return Outcome(end.reward, metrics, logs, truncated)


class _Elsewhere(ChatAgentEnv):
    answer: FrozenAnswer

    async def _begin(self) -> tuple[Episode, Inbox[Any]]:
        episode, inbox = await super()._begin()
        episode.routes.instead = self.answer  # before the agent can make a call
        return episode, inbox
