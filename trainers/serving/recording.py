"""Records served conversations as rollouts, whose rewards can be set later.

A conversation is written to disk after it has been idle for ``IDLE`` seconds, when the server drops
its tokens, or when the server stops. If it is continued after that, the new turns become a separate
rollout.
"""

import asyncio
import logging
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tinker
from tinker import types
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Logs, Trajectory, Transition

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.api import ApiResponse, failure, json_bytes
from evert.bridge.conversations.conversation import Conversation
from evert.bridge.env.transcript import Transcript
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import repr_of
from evert.bridge.records.files import ROLLOUTS
from evert.bridge.records.recorder import Recorder
from evert.bridge.records.rows import Row
from evert.bridge.tokens.renderer import PromptRenderer, with_tokenizer
from evert.trainers.rundir.recorded import change_rows

logger = logging.getLogger(__name__)

IDLE = 600.0
"""A conversation is written to disk if it gets no new reply for this many seconds."""

FILE = 2**23
"""File size in bytes after which a new file is started."""

ID = "id"
"""Key of the reply's id in a transition's logs."""

FEEDBACK = "feedback"
"""Name of the metric that marks transitions whose reward was set through feedback."""

_ID = re.compile(r"[0-9a-f]{12}[0-9]+$")  # see ``Api.new_id``; each API adds a prefix


@dataclass
class _OpenConversation:
    """A conversation that hasn't been written yet, with the Env attributes that a record needs."""

    agent: str
    renderer: Renderer
    transcript: Transcript = field(default_factory=Transcript)
    turns: list[Transition] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    task: object = NO_TASK


async def feedback(records: "ServedRecords | None", content: bytes) -> ApiResponse:
    """Handle a feedback request (``{"id": ..., "reward": ...}``), which sets a reply's reward."""
    body: Any = json_object(content) or {}
    reply, reward = body.get("id"), body.get("reward")
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if not isinstance(reply, str) or not is_number or not math.isfinite(reward):
        return _refusal(
            f'The feedback is {repr_of(body)}; expected {{"id": a reply\'s id, "reward": a '
            "number}."
        )
    if records is None:
        return _refusal("This server doesn't record replies. Start it with record=FOLDER.")
    is_recorded = await records.reward(reply, float(reward))
    if not is_recorded and records.share == 1:
        return _refusal(
            f"No recorded reply has the id {reply!r:.80}. Send the id of a reply from this "
            "server. (Old records may have been deleted.)",
            404,
        )
    return ApiResponse(200, json_bytes({"id": reply, "reward": reward, "recorded": is_recorded}))


def _refusal(message: str, status: int = 400) -> ApiResponse:
    return failure(status, message, "invalid_request_error", "invalid_feedback")


class ServedRecords:
    """Records the conversations of served models. Must be used in the event loop that serves them.

    Args:
        folder: Output folder. Rollouts are written to numbered files in its ``rollouts`` subfolder.
        renderers: Maps the names of the served models to their renderers.
        share: Fraction of conversations to record, greater than 0.
        max_bytes: Maximum total size of the files. When it is exceeded, the oldest are deleted.
        idle: See ``IDLE``.

    Raises:
        OSError: The folder is not writable.
    """

    def __init__(
        self,
        folder: Path,
        renderers: Mapping[str, PromptRenderer],
        *,
        share: float = 1.0,
        max_bytes: int = 2**30,
        idle: float = IDLE,
    ) -> None:
        self.share = share
        self._folder = folder / ROLLOUTS
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder(self._folder, share)
        self._max_bytes, self._idle = max_bytes, idle
        self._renderers = {  # copied, because they are used in another thread
            name: with_tokenizer(prompts.renderer, deepcopy(prompts.renderer.tokenizer))
            for name, prompts in renderers.items()
        }
        self._rollouts: dict[Conversation, _OpenConversation] = {}
        self._replies: dict[str, Transition] = {}  # by reply id, until the rollout is written
        self._is_recorded: WeakKeyDictionary[Conversation, bool] = WeakKeyDictionary()
        self._seen = 0  # number of conversations so far
        self._file = 1 + max((int(file.stem) for file in self._files()), default=0)
        self._writer = ThreadPoolExecutor(1, "evert records")

    def note(
        self,
        model: str,
        conversation: Conversation,
        request: ChatRequest,
        prompt: tinker.ModelInput,
        sampled: types.SampledSequence,
        reply_id: str | None,
    ) -> None:
        """Add a turn. Call this before adding the reply to the conversation.

        Args:
            model: The model's name.
            conversation: The conversation.
            request: The request.
            prompt: The prompt of the sampled reply.
            sampled: The sampled reply.
            reply_id: The reply's id, or None if the reply is not sent to the client.
        """
        if conversation not in self._is_recorded:
            self._is_recorded[conversation] = self._recorder.takes(self._seen)
            self._seen += 1
        if not self._is_recorded[conversation]:
            return
        if conversation not in self._rollouts:
            self._rollouts[conversation] = _OpenConversation(model, self._renderers[model])
        rollout = self._rollouts[conversation]
        rollout.transcript.note(request, conversation, overlaps=False)
        action = TokensWithLogprobs([*sampled.tokens], sampled.logprobs, sampled.stop_reason)
        logs: Logs = {} if reply_id is None else {ID: reply_id}
        turn = Transition(prompt, action, reward=0.0, episode_done=False, logs=logs)
        rollout.turns.append(turn)
        if reply_id is not None:
            self._replies[reply_id] = turn
        if rollout.timer is not None:
            rollout.timer.cancel()
        loop = asyncio.get_running_loop()
        rollout.timer = loop.call_later(self._idle, self.write, conversation)

    def write(self, conversation: Conversation) -> None:
        """If a conversation has turns that have not been written, schedule it to be written."""
        rollout = self._rollouts.pop(conversation, None)
        if rollout is None:
            return
        if rollout.timer is not None:
            rollout.timer.cancel()
        for turn in rollout.turns:
            self._replies.pop(str(turn.logs.get(ID)), None)
        self._writer.submit(self._write, rollout)

    async def reward(self, reply: str, reward: float) -> bool:
        """Set a reply's reward, replacing the previous one if there is one.

        Args:
            reply: The reply's id, as sent to the client.
            reward: The reward.

        Returns:
            Whether the reply was found.
        """
        match = _ID.search(reply)
        if match is None:
            return False
        if (turn := self._replies.get(match[0])) is not None:
            turn.reward = reward
            turn.metrics[FEEDBACK] = 1.0
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._change, match[0], reward)

    def close(self) -> None:
        """Write all conversations. Call this after the event loop has stopped."""
        for conversation in [*self._rollouts]:
            self.write(conversation)
        self._writer.shutdown()

    # -- in the writer's thread ------------------------------------------------------------------

    def _write(self, rollout: _OpenConversation) -> None:
        rollout.turns[-1].episode_done = True
        trajectory = Trajectory(rollout.turns, tinker.ModelInput.empty())
        about = {"model": rollout.agent}
        try:
            self._recorder.add([trajectory], [rollout], iteration=self._file, about=about)
            self._rotate()
        except Exception as error:  # other conversations must still be recorded
            logger.warning("A conversation could not be recorded.", exc_info=error)

    def _rotate(self) -> None:
        sizes = {file: file.stat().st_size for file in self._files()}
        self._file += max(sizes.values()) >= FILE
        while len(sizes) > 1 and sum(sizes.values()) > self._max_bytes:
            oldest = min(sizes)
            oldest.unlink()
            del sizes[oldest]

    def _change(self, reply: str, reward: float) -> bool:
        def change(row: Row) -> bool:
            for step in row["steps"]:
                if step["logs"].get(ID) == reply:
                    row["total_reward"] += reward - step["reward"]
                    step["reward"], step["metrics"][FEEDBACK] = reward, 1.0
                    return True
            return False

        return any(change_rows(file, change, reply) for file in reversed(self._files()))

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.jsonl"))
