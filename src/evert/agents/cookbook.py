"""``CookbookAgent``: an environment of the Cookbook's as an agent.

    agent = CookbookAgent(lambda renderer, answer: GuessNumberEnv(answer, renderer))
    env = ChatAgentEnv(agent, 42)

The agent plays the environment with the Cookbook's own runner, by a policy that asks the client
(``_Asking``). So the environment's limits, stop reasons and parse errors are what they are there;
and like any agent it is recorded, traced, mixed with others, and played by every trainer.
"""

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv
from tinker_cookbook.rl.rollout_limits import DEFAULT_LIMIT_STOP_REASONS
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Logs,
    Metrics,
    Observation,
    StepResult,
)

from evert.agents.listening_renderer import HeardRenderer
from evert.bridge.clients.client import AgentClient, ask, renderer_of
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import InvalidAgentError, UnsupportedPromptError, repr_of

ENV_STOP = "env_stop/"
"""What the metric of the environment's own stop reason begins with."""


class CookbookAgent:
    """An environment of the Tinker Cookbook's, played as an agent.

    Args:
        make: ``make(renderer, task)``, or ``make(renderer)`` where there is no task; sync or async.
            It returns an ``Env`` that renders and parses with this renderer, the policy's; or a
            ``MessageEnv``; or an ``EnvGroupBuilder`` of one Env, whose group reward and ``cleanup``
            count as well. Each episode makes a new one.

    The reward of each step belongs to the transition it was given for; metrics and logs too. The
    environment's stop reason is the metric ``env_stop/REASON``, and a limit of its own that cut it
    short is ``stop/truncated``. Within another agent, ``await agent(client, task)`` plays an
    episode; its rewards are given to the client as they come, and none is left in the ``Outcome``.

    Raises (when it plays):
        InvalidAgentError: ``make`` returns none of these, or the client is not one of evert's.
        UnsupportedPromptError: The environment hands out tokens that are of no messages: prompts
            that it did not make with ``renderer``, or token ids to stop at that are not its own.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    async def __call__(self, client: AgentClient, task: object = NO_TASK) -> Outcome:
        """Play one episode."""
        if not isinstance(client, AgentClient):
            raise InvalidAgentError(
                f"A CookbookAgent needs the client of an Env of evert's, got {repr_of(client)}: "
                "its environment is made with the policy's renderer. Play it by ChatAgentEnv(...)."
            )
        heard = HeardRenderer(renderer_of(client))
        async with AsyncExitStack() as stack:
            made = self.make(heard.renderer, *([] if task is NO_TASK else [task]))
            made = await made if inspect.isawaitable(made) else made
            env = await _env_of(made, heard, stack)
            trajectory = await do_single_rollout(_Asking(client, heard), _Told(env, client))
            metrics: Metrics = {}
            for last in trajectory.transitions[-1:]:
                metrics |= last.metrics  # the runner's own among them
            if isinstance(made, EnvGroupBuilder):
                [(reward, more)] = await made.compute_group_rewards([trajectory], [env])
                client.reward(reward)
                metrics |= more
        reason = trajectory.stop_reason
        if reason is not None:
            metrics[f"{ENV_STOP}{reason}"] = 1.0
        return Outcome(0.0, _own(metrics), truncated=reason in DEFAULT_LIMIT_STOP_REASONS)


async def _env_of(made: object, heard: HeardRenderer, stack: AsyncExitStack) -> Env:
    if isinstance(made, EnvGroupBuilder):
        stack.push_async_callback(made.cleanup)
        envs = await made.make_envs()
        if len(envs) != 1:
            raise InvalidAgentError(
                f"{type(made).__name__} makes a group of {len(envs)} Envs; expected one, since an "
                "agent plays one episode. Make it with a group size of 1 (evert's group_size makes "
                "the group); a game of several players is an agent with seats."
            )
        made = envs[0]
    for one in (made, getattr(made, "message_env", None)):
        for end in (getattr(one, "close", None), getattr(one, "cleanup", None)):
            if inspect.iscoroutinefunction(end):
                stack.push_async_callback(end)
    if isinstance(made, MessageEnv):
        return EnvFromMessageEnv(heard.renderer, made)
    if isinstance(made, Env):
        return made
    raise InvalidAgentError(
        f"The function of a CookbookAgent returned {repr_of(made)}; expected an Env, a MessageEnv "
        "or an EnvGroupBuilder of the Cookbook's."
    )


class _Asking(TokenCompleter):
    """Samples from whoever answers the agent's client."""

    def __init__(self, client: AgentClient, heard: HeardRenderer) -> None:
        self._client = client
        self._heard = heard

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        asked = self._heard.request_of(model_input)
        reply = await ask(
            self._client, asked, stop=self._strings(stop), max_tokens=max_tokens, tokens=True
        )
        is_cut = reply.finish_reason == "length"
        tokens = self._heard.tokens_of(reply)
        return TokensWithLogprobs(tokens, None, stop_reason="length" if is_cut else "stop")

    def _strings(self, stop: StopCondition) -> tuple[str, ...]:
        """The stops that are not the renderer's own."""
        own = self._heard.renderer.get_stop_sequences()
        further = [one for one in stop if one not in own]
        if ids := [one for one in further if not isinstance(one, str)]:
            raise UnsupportedPromptError(
                f"This environment stops at the tokens {ids}; a chat client takes strings. Let it "
                "stop where its renderer does, or at strings."
            )
        return tuple(map(str, further))


class _Told(Env):
    """An Env that tells the agent's client its rewards, metrics and logs."""

    def __init__(self, env: Env, client: AgentClient) -> None:
        self._env = env
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)  # what a runner may look for: its limits, say

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        first = await self._env.initial_observation()
        if isinstance(first, InitialObservationOverflow):
            self._tell(first.reward, first.metrics, first.logs)
        return first

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        result = await self._env.step(action, extra=extra)
        self._tell(result.reward, result.metrics, result.logs)
        return result

    def _tell(self, reward: float, metrics: Metrics, logs: Logs) -> None:
        self._client.reward(reward)
        for name, value in _own(metrics).items():
            self._client.metric(name, value)
        self._client.log(**logs)


def _own(metrics: Metrics) -> Metrics:
    """Metrics without a stop reason: only the agent's Env sets it."""
    return {k: value for k, value in metrics.items() if not k.startswith(STOP_METRIC_PREFIX)}
