"""``CookbookAgent``: an environment of the Cookbook's as an agent.

    agent = CookbookAgent(lambda renderer, answer: GuessNumberEnv(answer, renderer))
    env = ChatAgentEnv(agent, 42)

The agent plays the environment with the Cookbook's own runner, by a policy that asks the client
(``_Asking``). So the environment's limits, stop reasons and parse errors are what they are there;
and like any agent it is recorded, mixed with others, and played by every trainer.

An ``Env`` of the Cookbook's hands out tokens; which messages they are of, only the renderer knows
that it made them with. So it gets the policy's own renderer, listened to (``HeardRenderer``). What
the policy says goes to the Env in the tokens that were sampled; where nobody knows them (a reply
that came as text), in tokens that this renderer reads as that very reply.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import Message, ParseTermination, Renderer, ToolSpec
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

from evert.bridge.chat.messages import CookbookMessage
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.client import AgentClient, ask, renderer_of
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import InvalidAgentError, UnsupportedPromptError, repr_of
from evert.bridge.tokens.renderer import SHARED, PromptRenderer, with_tokenizer

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


async def _env_of(made: object, heard: "HeardRenderer", stack: AsyncExitStack) -> Env:
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

    def __init__(self, client: AgentClient, heard: "HeardRenderer") -> None:
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


# -- the renderer that is listened to --------------------------------------------------------------

Heard = tuple[tinker.ModelInput, ChatRequest]
"""A prompt, and what was asked with it; of no model yet."""


class HeardRenderer:
    """What an Env tells its ``renderer``, which is the policy's and listened to."""

    def __init__(self, prompts: PromptRenderer) -> None:
        self._prompts = prompts
        self._original = original = prompts.renderer
        self._prefixes: list[tuple[list[Message], list[ToolSpec], str]] = []
        self._heard: list[Heard] = []
        self._replies: dict[tuple[int, ...], Reply] = {}
        self._parsed: list[tuple[Message, Reply]] = []
        self.renderer: Renderer = with_tokenizer(original, original.tokenizer)
        vars(self.renderer).update(
            {SHARED: prompts},  # for an Env of evert's in the environment: no tokenizer of its own
            build_generation_prompt=self._build,
            create_conversation_prefix_with_tools=self._offer,
            parse_response=self._parse,
        )

    # -- what the Env calls, from any thread -----------------------------------------------------

    def _build(
        self, messages: list[Message], role: str = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        with self._prompts.lock:
            prompt = self._original.build_generation_prompt(messages, role, prefill)
        if role == "assistant":
            tools, rest = self._without_tools(messages)
            self._heard.append((prompt, ChatRequest("", rest, tools, prefill=prefill or "")))
        return prompt

    def _offer(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        with self._prompts.lock:
            prefix = self._original.create_conversation_prefix_with_tools(tools, system_prompt)
        self._prefixes.append(([*prefix], [*tools], system_prompt))
        return prefix

    def _parse(self, response: list[int]) -> tuple[Message, ParseTermination]:
        reply = self._replies.get(tuple(response))
        if reply is not None and reply.tokens is None:
            message, termination = reply.parsed, ParseTermination.STOP_SEQUENCE
        else:
            with self._prompts.lock:
                message, termination = self._original.parse_response(response)
        if reply is not None:
            self._parsed.append((message, reply))
        return message, termination

    # -- between the Env and the policy ----------------------------------------------------------

    def request_of(self, prompt: tinker.ModelInput) -> ChatRequest:
        """What an Env asks with a prompt."""
        for heard in reversed(self._heard):
            if heard[0] is prompt or heard[0] == prompt:
                self._heard = [heard]  # the Env may hand it out again
                return heard[1]
        raise UnsupportedPromptError(
            "This environment hands out a prompt that it did not make with the renderer it was "
            "given, so nothing says which messages it is of, and a chat client takes messages "
            "alone. Make it with that one, CookbookAgent(lambda renderer, task: MyEnv(..., "
            "renderer)), and let it hand out what renderer.build_generation_prompt(messages) "
            "returns."
        )

    def tokens_of(self, reply: Reply) -> list[int]:
        """A reply in tokens for the Env: as sampled, or as this renderer reads it."""
        tokens = [*(reply.tokens or ())]
        if reply.tokens is None:
            tokens = self._prompts.spell(reply.text) + self._prompts.end_tokens[:1]
        self._replies[tuple(tokens)] = reply
        return tokens

    def _without_tools(
        self, messages: Sequence[Message]
    ) -> tuple[list[Any] | None, list[CookbookMessage]]:
        whole = [self._as_sent(message) for message in messages]
        for prefix, tools, system in self._prefixes:
            if tools and [*messages[: len(prefix)]] == prefix:
                first = [CookbookMessage(role="system", content=system)] if system else []
                offered = [{"type": "function", "function": {**tool}} for tool in tools]
                return offered, [*first, *whole[len(prefix) :]]
        return None, whole

    def _as_sent(self, message: Message) -> CookbookMessage:
        """The message with its client's ids of tool calls; as it is if one could not be parsed."""
        reply = next((reply for parsed, reply in self._parsed if parsed is message), None)
        if reply is None or not reply.tool_calls or reply.unparsed:
            return CookbookMessage(message)
        calls = [*reply.tool_calls]
        return CookbookMessage(role="assistant", content=reply.text, tool_calls=calls)
