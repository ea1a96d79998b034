"""One episode of a Gymnasium environment: a ``ChatAgentEnv`` on the event loop.

``start`` and ``act`` return a ``Moment``, the state of the episode as messages and as tokens.
During training, the Cookbook's samplers enforce token limits. Here, this module has to enforce
them: it cuts off replies that are too long, and ends an episode once ``max_sampled_tokens`` is used
up. Wall-clock limits have no effect.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import tinker
from tinker_cookbook.rl.rollout_limits import DEFAULT_LIMIT_STOP_REASONS
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    InitialObservationOverflow,
    StepResult,
    StopReason,
)

from evert.bridge.chat.messages import as_fields
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.env.endings import TRUNCATED
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.errors import EnvStateError
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.token_log import flatten, is_text

LIMITS = frozenset({*DEFAULT_LIMIT_STOP_REASONS, TRUNCATED})
"""Stop reasons for truncated episodes. With any other reason, the episode is terminated."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of an episode between two actions, or at its end.

    Attributes:
        messages: The conversation as the agent sent it. At the end, it includes the last reply.
        tokens: The prompt's token ids. At the end, they include the last action. None if the prompt
            has images.
        stop_reason: Why the episode is over, or None while it is running.
        max_tokens: Maximum length of the reply in tokens, or None for no limit.
        action: Tokens of the last action (cut off if it was too long), or None at the start.
    """

    messages: list[dict[str, Any]]
    tokens: tuple[int, ...] | None
    reward: float = 0.0
    stop_reason: str | None = None
    tools: list[Any] = field(default_factory=list)
    stop: list[str] | list[int] = field(default_factory=list)
    max_tokens: int | None = None
    action: tuple[int, ...] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_truncated(self) -> bool:
        """Whether the episode was truncated, by a limit or by the agent."""
        return self.stop_reason in LIMITS


class AgentEpisode:
    """A single run of an agent. Use it on only one event loop, and always ``close`` it."""

    def __init__(self, env: ChatAgentEnv, renderer: PromptRenderer) -> None:
        self._env = env
        self._renderer = renderer
        self._moment = Moment([], ())
        self._sampled = 0

    async def start(self) -> Moment:
        """Run the agent until its first model call.

        Raises:
            EnvStateError: The episode ended before the first call.
        """
        first = await self._env.initial_observation()
        if isinstance(first, InitialObservationOverflow):
            raise EnvStateError(
                "The episode ended before its first observation: the agent made no model call, or "
                "its first prompt is longer than max_trajectory_tokens (reward "
                f"{first.reward}, {first.metrics}). Gymnasium does not allow an episode to end in "
                "reset(). Remove this task from the tasks, or raise the limit."
            )
        self._moment = self._moment_of_call(first[0], list(first[1]))
        return self._moment

    async def act(self, tokens: Sequence[int]) -> Moment:
        """Reply to the agent's call, and run the agent until its next call or until it returns."""
        action, is_cut = self._within_budget(list(tokens))
        latest = self._moment
        conversation = self._env.conversation
        if conversation is None:
            raise EnvStateError("The agent has no pending call to reply to; start a new episode.")
        old_reply = conversation.reply
        result = await self._env.step(action, extra={"stop_reason": "length" if is_cut else "stop"})
        self._sampled += len(action)
        stop: str | None
        if result.episode_done:
            reply = conversation.reply if conversation.reply is not old_reply else None
            message = {"role": "assistant", "content": self._renderer.decode(action)}
            if reply is not None:
                sdk_message = completion(reply, id="", model="").choices[0].message
                message = sdk_message.model_dump(exclude_none=True)
            prompt = latest.tokens
            moment = Moment([*copy_json(latest.messages), message], prompt and (*prompt, *action))
            stop = _stop_reason(result)
        else:
            moment = self._moment_of_call(result.next_observation, list(result.next_stop_condition))
            stop = StopReason.MAX_SAMPLED_TOKENS if self._is_used_up() else None
        if stop is not None:
            await self._env.close()
        self._moment = _with_result(moment, action, result, stop)
        return self._moment

    async def close(self) -> None:
        """Stop the episode. Idempotent."""
        await self._env.close()

    def encode(self, text: str) -> list[int]:
        """Encode a reply, with special tokens as plain text, and add the end-of-turn token."""
        end = self._renderer.end_tokens[:1]
        if not end and isinstance(self._renderer.stop[0], str):
            end = self._renderer.encode(self._renderer.stop[0])
        return self._renderer.spell(text) + end

    def _moment_of_call(self, prompt: tinker.ModelInput, stop: list[Any]) -> Moment:
        request = self._env.request
        assert request is not None
        return Moment(
            messages=[copy_json(dict(as_fields(m, i))) for i, m in enumerate(request.messages)],
            tokens=_token_ids(prompt),
            tools=copy_json(request.tools or []),
            stop=stop,
            max_tokens=self._budget(prompt.length),
        )

    def _budget(self, prompt: int) -> int | None:
        limits = self._env.rollout_limits
        caps = [limits.max_turn_tokens]
        if limits.max_trajectory_tokens is not None:
            caps.append(limits.max_trajectory_tokens - prompt)
        if limits.max_sampled_tokens is not None:
            caps.append(limits.max_sampled_tokens - self._sampled)
        return min((cap for cap in caps if cap is not None), default=None)

    def _within_budget(self, action: list[int]) -> tuple[list[int], bool]:
        cap = self._moment.max_tokens
        if cap is None or len(action) < cap:
            return action, False
        action = action[:cap]
        return action, action[-1] not in self._renderer.end_tokens

    def _is_used_up(self) -> bool:
        limit = self._env.rollout_limits.max_sampled_tokens
        return limit is not None and limit - self._sampled <= 1  # the Cookbook's rule


def _with_result(moment: Moment, action: list[int], result: StepResult, stop: str | None) -> Moment:
    return replace(
        moment,
        reward=float(result.reward),
        stop_reason=None if stop is None else str(stop),
        action=tuple(action),
        metrics={key: float(value) for key, value in result.metrics.items()},
        logs=dict(result.logs),
    )


def _stop_reason(result: StepResult) -> str:
    reasons = [key for key, value in result.metrics.items() if value == 1.0]
    stops = [key for key in reasons if key.startswith(STOP_METRIC_PREFIX)]
    return stops[0].removeprefix(STOP_METRIC_PREFIX) if stops else str(StopReason.COMPLETED)


def _token_ids(prompt: tinker.ModelInput) -> tuple[int, ...] | None:
    flat = flatten(prompt.chunks)
    return cast("tuple[int, ...]", tuple(flat)) if is_text(flat) else None


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON data, ten times as fast as ``copy.deepcopy``."""
    if type(value) is str:
        return value
    if type(value) is dict:
        return {key: copy_json(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_json(item) for item in value]
    return copy.deepcopy(value)
