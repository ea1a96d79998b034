"""A Cookbook token completer that samples from verl's servers."""

import time
from collections.abc import Mapping
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.errors import EvertError, UnsupportedPromptError
from evert.trainers.config.arguments import UsageError
from evert.trainers.integrations.verl.settings import Room


class ServerReplyError(EvertError, RuntimeError):
    """A verl server returned a reply that cannot be used for training."""


class ServerPolicy(TokenCompleter):
    """The policy for one episode. All turns use the same server to benefit from its cache."""

    def __init__(
        self,
        client: Any,
        request_id: str,
        sampling: Mapping[str, Any],
        room: Room,
        tokenizer: Any,
    ) -> None:
        self._client = client
        self._request_id = request_id
        self._sampling = sampling
        self._room = room
        self._tokenizer = tokenizer
        self._turns = 0
        self.seconds = 0.0
        self.preempted = -1
        """How many times the servers preempted a reply; -1 if unknown."""
        self.versions: tuple[int | None, int | None] = (None, None)
        """Weight versions that sampled the first and the last turn; None if unknown."""

    async def __call__(
        self,
        model_input: tinker.ModelInput,
        stop: StopCondition,
        *,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        """Sample one turn.

        Raises:
            UnsupportedPromptError: The prompt contains images.
            UsageError: The first prompt is too long.
            ServerReplyError: The reply was aborted, or some log-probabilities are missing.
        """
        prompt = self._prompt(model_input)
        room = self._room.context - len(prompt)
        cap = room if max_tokens is None else min(room, max_tokens)
        stops = self._stops(stop)
        started = time.perf_counter()
        output = await self._client.generate(
            request_id=self._request_id,
            prompt_ids=prompt,
            sampling_params={**self._sampling, **stops, "max_tokens": cap},
        )
        self.seconds += time.perf_counter() - started
        self._turns += 1
        self._note(output)
        tokens = list(output.token_ids)
        cut = len(tokens) >= cap and not self._has_stop(tokens, stops)
        return TokensWithLogprobs(tokens, _logprobs(output), "length" if cut else "stop")

    def _prompt(self, model_input: tinker.ModelInput) -> list[int]:
        try:
            prompt = model_input.to_ints()
        except ValueError as error:
            raise UnsupportedPromptError(
                "A prompt contains something other than token ids (an image?), but evert's agent "
                "loop can only send token ids to verl. Remove images, or use the Cookbook's loop."
            ) from error
        if self._turns == 0 and len(prompt) > self._room.prompt:
            raise too_long(f"it has {len(prompt)} tokens", self._room)
        return prompt

    def _stops(self, stop: StopCondition) -> dict[str, Any]:
        """Return verl's stop settings.

        Special tokens are passed as ids, because the server removes them from its text.
        """
        control = self._tokenizer.get_added_vocab()
        ids = [mark if isinstance(mark, int) else control.get(mark) for mark in stop]
        texts = [mark for mark in stop if isinstance(mark, str) and mark not in control]
        stops: dict[str, Any] = {"stop_token_ids": [number for number in ids if number is not None]}
        return {**stops, "stop": texts} if texts else stops

    def _has_stop(self, tokens: list[int], stops: Mapping[str, Any]) -> bool:
        if tokens and tokens[-1] in stops["stop_token_ids"]:
            return True
        texts = stops.get("stop", ())
        return any(text in self._tokenizer.decode(tokens) for text in texts)

    def _note(self, output: Any) -> None:
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        now = output.extra_fields.get("global_steps")
        first = output.extra_fields.get("min_global_steps", now)
        last = output.extra_fields.get("max_global_steps", now)
        self.versions = (first if self._turns == 1 else self.versions[0], last)


def too_long(reason: str, room: Room) -> UsageError:
    """Return the error for a first prompt that is too long."""
    return UsageError(
        f"An agent's first prompt is too long ({reason}) for verl's "
        f"data.max_prompt_length={room.prompt}. Increase that setting (and "
        "actor_rollout_ref.rollout.prompt_length, if you set it), or shorten the prompt."
    )


def _logprobs(output: Any) -> list[float] | None:
    if output.stop_reason in ("aborted", "abort"):
        raise ServerReplyError(
            f"A verl server aborted a reply after {len(output.token_ids)} tokens; expected a "
            "complete reply. The episode is excluded."
        )
    if not output.log_probs and output.token_ids:
        return None  # rollout.calculate_log_probs is disabled
    logprobs = [float(value) for value in output.log_probs or ()]
    if len(logprobs) != len(output.token_ids):
        raise ServerReplyError(
            f"A verl server returned {len(logprobs)} log-probabilities for "
            f"{len(output.token_ids)} tokens; expected one per token."
        )
    return logprobs
