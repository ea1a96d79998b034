"""``CookbookAgent``: a Cookbook environment as an agent.

    agent = CookbookAgent(lambda renderer, answer: GuessNumberEnv(answer, renderer))
    env = ChatAgentEnv(agent, 42)

The agent plays the environment with the Cookbook's runner and a completer that calls the client
(``_ClientCompleter``). Limits, stop reasons and parse errors therefore work as in the Cookbook,
and the agent can be recorded, combined with other agents, and trained with any trainer.

A Cookbook ``Env`` returns observations as tokens, but the client expects messages. The Env
therefore gets a copy of the policy's renderer that remembers the messages for each prompt
(``PromptRecorder``). The action consists of the sampled tokens of the reply. If the reply is only
available as text, its tokens are unknown, so the action consists of tokens that the renderer parses
into the same reply.

The environment in the ``math_rl`` recipe grades answers with sympy, which can hang forever on a
crafted answer. Its answers are therefore graded in a separate process (``_ReportingEnv``).
"""

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import (
    Message,
    ParseTermination,
    Renderer,
    ToolSpec,
    get_text_content,
)
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
from evert.bridge.episode.agent import ENV_STOP, NO_TASK, Outcome
from evert.bridge.errors import InvalidAgentError, UnsupportedPromptError, repr_of
from evert.bridge.isolation import import_function, isolated_score
from evert.bridge.tokens.renderer import SHARED, PromptRenderer, with_tokenizer

MATHS = "tinker_cookbook.recipes.math_rl.math_env"
GRADERS = {
    "sympy": "tinker_cookbook.recipes.math_rl.math_grading:grade_answer",
    "math_verify": "tinker_cookbook.recipes.math_rl.math_grading:grade_answer_math_verify",
}
"""The environment module of the ``math_rl`` recipe, and its grading functions by name."""


class CookbookAgent:
    """An agent that plays a Tinker Cookbook environment.

    Args:
        make: A sync or async function ``make(renderer, task)``, or ``make(renderer)`` if there is
            no task. It is called for each episode with the policy's renderer, and must return an
            ``Env`` that renders and parses with this renderer, a ``MessageEnv``, or an
            ``EnvGroupBuilder`` for a single Env. A builder's group reward is added, and its
            ``cleanup`` is called.

    The reward, metrics and logs of each step are attached to its transition. The environment's stop
    reason is reported as the metric ``env_stop/REASON``, and ``stop/truncated`` is set if one of
    the environment's limits was reached. You can also play an episode inside another agent with
    ``await agent(client, task)``. Its rewards are then passed to the client step by step, and the
    reward of the ``Outcome`` is 0.

    Raises (during an episode):
        InvalidAgentError: ``make`` returned something else, or the client is not an evert client.
        UnsupportedPromptError: The environment returned a prompt that was not created with
            ``renderer``, or stops at token ids other than the renderer's.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    async def __call__(self, client: AgentClient, task: object = NO_TASK) -> Outcome:
        """Play one episode."""
        if not isinstance(client, AgentClient):
            raise InvalidAgentError(
                "CookbookAgent needs the client of an evert Env, because its environment needs "
                f"the policy's renderer; got {repr_of(client)}. Run it with ChatAgentEnv(...)."
            )
        recorder = PromptRecorder(renderer_of(client))
        async with AsyncExitStack() as stack:
            environment = self.make(recorder.renderer, *([] if task is NO_TASK else [task]))
            environment = await environment if inspect.isawaitable(environment) else environment
            env = await _env_of(environment, recorder, stack)
            policy = _ClientCompleter(client, recorder)
            trajectory = await do_single_rollout(policy, _ReportingEnv(env, client))
            metrics: Metrics = {}
            for last in trajectory.transitions[-1:]:
                metrics |= last.metrics  # includes the runner's metrics
            if isinstance(environment, EnvGroupBuilder):
                [(reward, more)] = await environment.compute_group_rewards([trajectory], [env])
                client.reward(reward)
                metrics |= more
        reason = trajectory.stop_reason
        if reason is not None:
            metrics[f"{ENV_STOP}{reason}"] = 1.0
        return Outcome(0.0, _without_stops(metrics), truncated=reason in DEFAULT_LIMIT_STOP_REASONS)


async def _env_of(environment: object, recorder: "PromptRecorder", stack: AsyncExitStack) -> Env:
    if isinstance(environment, EnvGroupBuilder):
        stack.push_async_callback(environment.cleanup)
        envs = await environment.make_envs()
        if len(envs) != 1:
            raise InvalidAgentError(
                f"{type(environment).__name__} makes a group of {len(envs)} Envs; expected a "
                "single Env, because an agent plays one episode. Use a group size of 1, and create "
                "the group with evert's group_size. For multiplayer games, write an agent with "
                "seats."
            )
        environment = envs[0]
    for owner in (environment, getattr(environment, "message_env", None)):
        for close in (getattr(owner, "close", None), getattr(owner, "cleanup", None)):
            if inspect.iscoroutinefunction(close):
                stack.push_async_callback(close)
    if isinstance(environment, MessageEnv):
        return EnvFromMessageEnv(recorder.renderer, environment)
    if isinstance(environment, Env):
        return environment
    raise InvalidAgentError(
        f"The function passed to CookbookAgent returned {repr_of(environment)}; expected a "
        "Cookbook Env, MessageEnv or EnvGroupBuilder."
    )


class _ClientCompleter(TokenCompleter):
    """A completer that calls the agent's client."""

    def __init__(self, client: AgentClient, recorder: "PromptRecorder") -> None:
        self._client = client
        self._recorder = recorder

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        request = self._recorder.request_of(model_input)
        reply = await ask(
            self._client, request, stop=self._strings(stop), max_tokens=max_tokens, tokens=True
        )
        is_cut = reply.finish_reason == "length"
        tokens = self._recorder.tokens_of(reply)
        return TokensWithLogprobs(tokens, None, stop_reason="length" if is_cut else "stop")

    def _strings(self, stop: StopCondition) -> tuple[str, ...]:
        """Return the stop strings that are not among the renderer's own."""
        renderer_stops = self._recorder.renderer.get_stop_sequences()
        further = [item for item in stop if item not in renderer_stops]
        if ids := [item for item in further if not isinstance(item, str)]:
            raise UnsupportedPromptError(
                f"This environment stops at the tokens {ids}, but a chat client only supports "
                "strings. Use the stop sequences of the renderer, or strings."
            )
        return tuple(map(str, further))


class _ReportingEnv(Env):
    """An Env that passes its rewards, metrics and logs to the agent's client."""

    def __init__(self, env: Env, client: AgentClient) -> None:
        self._env = env
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)  # the runner reads attributes such as limits

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        first = await self._env.initial_observation()
        if isinstance(first, InitialObservationOverflow):
            self._report(first.reward, first.metrics, first.logs)
        return first

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        env = await self._grade(action) if _is_maths(self._env) else self._env
        result = await env.step(action, extra=extra)
        self._report(result.reward, result.metrics, result.logs)
        return result

    async def _grade(self, action: Action) -> Env:
        """Return a copy of the recipe's Env in which the answer has already been checked."""
        env: Any = copy.copy(self._env)
        message, _ = env.renderer.parse_response(action)
        correct = None
        with suppress(ValueError):  # the message contains no answer
            answer = sys.modules[MATHS].extract_boxed(get_text_content(message))
            scorer = (import_function, GRADERS[env.grader], "1", "2")
            correct = await isolated_score(self._client, scorer, answer, env.answer)
        env.check_answer = lambda _: correct is True
        return env  # type: ignore[no-any-return]

    def _report(self, reward: float, metrics: Metrics, logs: Logs) -> None:
        self._client.reward(reward)
        for name, value in _without_stops(metrics).items():
            self._client.metric(name, value)
        self._client.log(**logs)


def _is_maths(env: Env) -> bool:
    """Return whether the Env uses ``math_rl``'s check, which may hang despite its timeout."""
    check = getattr(type(env), "check_answer", None)
    return MATHS in sys.modules and check is sys.modules[MATHS].MathEnv.check_answer


def _without_stops(metrics: Metrics) -> Metrics:
    """Return metrics without stop reasons, which may only be set by evert's Env."""
    return {k: value for k, value in metrics.items() if not k.startswith(STOP_METRIC_PREFIX)}


# -- a renderer that remembers its prompts ---------------------------------------------------------

RenderedRequest = tuple[tinker.ModelInput, ChatRequest]
"""A prompt and the request from which it was rendered (without a model name)."""


class PromptRecorder:
    """Gives an Env a copy of the policy's renderer, and records the prompts it renders."""

    def __init__(self, prompts: PromptRenderer) -> None:
        self._prompts = prompts
        self._original = original = prompts.renderer
        self._prefixes: list[tuple[list[Message], list[ToolSpec], str]] = []
        self._rendered: list[RenderedRequest] = []
        self._replies: dict[tuple[int, ...], Reply] = {}
        self._parsed: list[tuple[Message, Reply]] = []
        self.renderer: Renderer = with_tokenizer(original, original.tokenizer)
        vars(self.renderer).update(
            {SHARED: prompts},  # share the tokenizer with any evert Env inside this environment
            build_generation_prompt=self._build,
            create_conversation_prefix_with_tools=self._offer,
            parse_response=self._parse,
        )

    # -- called by the Env, from any thread ------------------------------------------------------

    def _build(
        self, messages: list[Message], role: str = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        with self._prompts.lock:
            prompt = self._original.build_generation_prompt(messages, role, prefill)
        if role == "assistant":
            tools, conversation = self._without_tools(messages)
            request = ChatRequest("", conversation, tools, prefill=prefill or "")
            self._rendered.append((prompt, request))
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
        """Return the request that was rendered into this prompt."""
        for rendered in reversed(self._rendered):
            if rendered[0] is prompt or rendered[0] == prompt:
                self._rendered = [rendered]  # the Env may return the same prompt again
                return rendered[1]
        raise UnsupportedPromptError(
            "This environment returned a prompt that was not created with the renderer it was "
            "given. A chat client needs the messages, which are unknown in this case. Create the "
            "environment with that renderer, CookbookAgent(lambda renderer, task: MyEnv(..., "
            "renderer)), and make it return renderer.build_generation_prompt(messages)."
        )

    def tokens_of(self, reply: Reply) -> list[int]:
        """Return a reply's sampled tokens or, if unknown, tokens that parse into the reply."""
        tokens = [*(reply.tokens or ())]
        if reply.tokens is None:
            tokens = self._prompts.spell(reply.text) + self._prompts.end_tokens[:1]
        self._replies[tuple(tokens)] = reply
        return tokens

    def _without_tools(
        self, messages: Sequence[Message]
    ) -> tuple[list[Any] | None, list[CookbookMessage]]:
        conversation = [self._as_sent(message) for message in messages]
        for prefix, tools, system in self._prefixes:
            if tools and [*messages[: len(prefix)]] == prefix:
                first = [CookbookMessage(role="system", content=system)] if system else []
                functions = [{"type": "function", "function": {**tool}} for tool in tools]
                return functions, [*first, *conversation[len(prefix) :]]
        return None, conversation

    def _as_sent(self, message: Message) -> CookbookMessage:
        """Restore a parsed message's tool calls with their ids, if all of them could be parsed."""
        reply = next((reply for parsed, reply in self._parsed if parsed is message), None)
        if reply is None or not reply.tool_calls or reply.unparsed:
            return CookbookMessage(message)
        calls = [*reply.tool_calls]
        return CookbookMessage(role="assistant", content=reply.text, tool_calls=calls)
