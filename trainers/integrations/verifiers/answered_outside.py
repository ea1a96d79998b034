"""An agent whose calls somebody else answers: another framework's endpoint, which keeps the tokens.

No trainer waits for the calls here, and nothing is rendered. But for that the agent is played as
ever: blocking or async, with a client of its own that is taken over, its notes and its errors.
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
"""What begins the names of metrics that are of an Env's tokens, and of its end."""


async def play_at(
    answer: FrozenAnswer,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Outcome:
    """Play an agent to its end: all its rewards together, and what it noted.

    ``answer`` is what the policy replies to a request. Options of an Env's tokens have no effect.
    """
    env = _Elsewhere(agent, task, **options)
    env.answer = answer
    try:
        end = await env.initial_observation()
    finally:
        await env.close()
    if not isinstance(end, InitialObservationOverflow):  # a seat's call: there are none here
        raise EvertError("A call of this agent was answered by nobody; ask for the policy alone.")
    metrics = {k: value for k, value in end.metrics.items() if not k.startswith(REPORT)}
    logs = {key: value for key, value in end.logs.items() if key != NO_CALL}
    truncated = f"{STOP_METRIC_PREFIX}{TRUNCATED}" in end.metrics
    return Outcome(end.reward, metrics, logs, truncated)


class _Elsewhere(ChatAgentEnv):
    answer: FrozenAnswer

    async def _begin(self) -> tuple[Episode, Inbox[Any]]:
        episode, inbox = await super()._begin()
        episode.routes.instead = self.answer  # no call has arrived: the loop has not been left
        return episode, inbox
