"""``RolloutRecord`` is a recorded rollout. ``read_records`` reads all rollouts of a run."""

import json
import logging
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import tinker
from pydantic_core import from_json
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.chat.messages import ROLES
from evert.bridge.env.pending import GIVEN_UP
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import RecordError
from evert.bridge.records.files import record_files
from evert.bridge.records.rows import SCHEMA, Row
from evert.bridge.records.schema import CHUNK, check_row, has_tokens
from evert.bridge.records.traces import LARGEST, is_trace_file, rows_of
from evert.bridge.tokens.logprobs import keep_logprobs
from evert.bridge.tokens.token_log import FlatPrompt, chunks_of

logger = logging.getLogger(__name__)


class RolloutRecord:
    """A recorded rollout, with its prompts and actions as tokens, and its conversations.

    Args:
        row: A row of a rollout file, also available as an attribute. ``docs/records.md`` lists its
            fields.

    Attributes:
        has_tokens: Whether token ids were recorded. Traces from other programs may be text only.

    Raises:
        RecordError: The row has a different schema version, or a field is invalid.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        schema = row.get("evert_schema")
        if schema != SCHEMA:
            raise RecordError(
                f"A record has evert_schema={schema!r}, but this version of evert reads {SCHEMA}. "
                "Read it with the version that wrote it (see its versions field), or record the "
                "run again."
                if schema is not None
                else "A line is not an evert rollout because it has no evert_schema, only "
                f"{[*row]}. Pass a run or an evaluation that was started with record=True. (The "
                "rollout summaries written by the Cookbook contain neither tokens nor messages.)"
            )
        check_row(row)
        self.row = row
        self.has_tokens = has_tokens(row)

    def __repr__(self) -> str:
        return f"<RolloutRecord of {self.row['agent']}: {self.turns} turns, reward {self.reward:g}>"

    @property
    def turns(self) -> int:
        """The number of actions (0 if the agent did not call the model)."""
        steps = self.row["steps"]  # the runner adds an empty step if there are no calls
        is_played = len(steps) > 1 or any(
            step["ac_len"] or step["ob_len"] or "call" in step for step in steps
        )
        return len(steps) if is_played else 0

    @property
    def reward(self) -> float:
        """The total reward, including the group reward."""
        return float(self.row["total_reward"])

    @property
    def task(self) -> Any:
        """The task, or ``NO_TASK``. Raises RecordError if the task was not recorded."""
        with suppress(KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return literal_eval(self.row["task_literal"])
        if "task_repr" in self.row:
            raise RecordError(
                f"The task of this record is {self.row['task_repr']}, which cannot be restored. "
                "Pass the task to replay or BranchEnv (task=...); a reward function can use "
                "record.row['task_repr'] instead."
            )
        return self.row.get("task", NO_TASK)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, summed over all turns."""
        total = Counter[str]()
        for step in self.row["steps"]:
            total.update(step["metrics"])
        return {name: float(value) for name, value in total.items()}

    @property
    def text(self) -> str:
        """The text of the last action, or "" if there are no actions."""
        return str(self.row["steps"][-1]["text"]) if self.turns else ""

    @cached_property
    def prompts(self) -> list[FlatPrompt]:
        """The prompt tokens of each turn. An image is a single chunk.

        Like ``action``, this raises a RecordError if tokens were not recorded (``has_tokens``).
        """
        _check_tokens(self.row)
        prompts: list[FlatPrompt] = []
        for step in self.row["steps"]:
            after, new = step["prompt"]["after"], map(_element, step["prompt"]["tokens"])
            before = [] if after is None else prompts[after] + self.row["steps"][after]["tokens"]
            prompts.append([*before, *new])
        return prompts

    def action(self, turn: int) -> TokensWithLogprobs:
        """Return the action of a turn."""
        _check_tokens(self.row)
        step = self.row["steps"][turn]
        tokens, logprobs = [*step["tokens"]], step["logprobs"]
        return keep_logprobs(TokensWithLogprobs(tokens, logprobs, step["stop_reason"]))

    def trajectory(self) -> Trajectory:
        """Return the trajectory as played, without the group reward (``row["final_reward"]``)."""
        transitions = [
            Transition(
                ob=tinker.ModelInput(chunks=chunks_of(prompt)),
                ac=self.action(turn),
                reward=step["reward"],
                episode_done=step["episode_done"],
                metrics=dict(step["metrics"]),
                logs=dict(step["logs"]),
            )
            for turn, (step, prompt) in enumerate(zip(self.row["steps"], self.prompts, strict=True))
        ]
        return Trajectory(transitions, tinker.ModelInput.empty(), self.row["stop_reason"])

    def is_given_up(self, turn: int) -> bool:
        """Return whether the agent gave up on a turn's call and never read the reply."""
        return GIVEN_UP in self.row["steps"][turn]["metrics"]

    def asked(self, turn: int) -> list[Row]:
        """Return the messages in a turn's request. Raises RecordError if they were not kept."""
        messages = list[Row]()
        for call in map(self.call, self.path(turn)):
            if "again" not in call:
                messages += [] if call["after"] is None else [self._reply(call["after"])]
                messages += call["messages"]
        return messages

    def messages(self, turn: int = -1) -> list[Row]:
        """Return the conversation up to a turn's reply. Raises RecordError if it was not kept."""
        turn = range(self.turns)[turn]
        return [*self.asked(turn), self._reply(turn)]

    def sampled_messages(self, turn: int, *, parsed: bool = False) -> list[Row]:
        """Return the conversation up to a turn's reply as the model saw it in the prompt.

        This includes the description of the tools, instructions about the reply format, and replies
        that were retried. Replies contain thinking and markup or, if ``parsed`` is set, the fields
        that the agent received.
        """
        messages, path = list[Row](), self.path(turn)
        for place in path:
            call, step = self.call(place), self.row["steps"][place]
            for message in call["messages"] if "again" not in call else ():
                messages.append({**message, "role": ROLES.get(message["role"], message["role"])})
            reply = (parsed and step.get("reply")) or self._text_reply(place)
            content = call.get("prefill", "") + (reply.get("content") or "")
            messages += [*call.get("added", []), {**reply, "content": content}]
        prefix = self.call(path[0]).get("prefix", [])
        has_system = bool(prefix) and messages[0]["role"] == "system"
        return [*prefix, *messages[has_system and isinstance(messages[0].get("content"), str) :]]

    def path(self, turn: int) -> list[int]:
        """Return the turns of the conversation that ends with ``turn``, including retried turns."""
        turns, call = [turn], self.call(turn)
        while (before := call.get("again", call["after"])) is not None:
            turns.insert(0, before)
            call = self.call(before)
        return turns

    def tools(self, turn: int) -> list[Row]:
        """Return the tools in a turn's request ([] if there are none)."""
        tools: list[Row] = self.call(self.path(turn)[0]).get("tools", [])
        return tools

    def last_turns(self) -> list[int]:
        """Return the last turn of each conversation: the turns that no other turn continues.

        Calls that the agent gave up on are left out.
        """
        steps = self.row["steps"][: self.turns]
        # The turn that ended the episode is also the end of a conversation.
        ends = [turn for turn, step in enumerate(steps) if step.get("reply") or step is steps[-1]]
        turns = [turn for turn in ends if not self.is_given_up(turn)]
        gone_on = {steps[turn].get("call", {}).get("after") for turn in turns}
        return [turn for turn in turns if turn not in gone_on]

    def call(self, turn: int) -> Row:
        """Return the call of a turn. Raises RecordError if its messages were not kept."""
        call: Row | None = self.row["steps"][turn].get("call")
        if call is None:
            raise RecordError(
                f"Turn {turn} of this record has no messages because they were not recorded. Call "
                "recorder.watch(env) before you play the Env."
            )
        return call

    def _reply(self, turn: int) -> Row:
        return self.row["steps"][turn].get("reply") or self._text_reply(turn)

    def _text_reply(self, turn: int) -> Row:
        return {"role": "assistant", "content": self.row["steps"][turn]["text"]}


def _check_tokens(row: Mapping[str, Any]) -> None:
    if not has_tokens(row):
        raise RecordError(
            f"The record was read from a trace ({row['trace'].get('format')}) without token ids. "
            "It can only be viewed, rescored and exported as text (format=sft)."
        )


def _element(token: Any) -> Any:
    return token if isinstance(token, int) else CHUNK.validate_python(token)


def read_records(
    path: str | Path, read: Callable[[int], object] = lambda size: None
) -> Iterator[RolloutRecord]:
    """Iterate over recorded rollouts, or over traces from other programs.

    Supported traces are OpenEnv's ``TrainingTrace`` and Harbor's ATIF, one per line (``.jsonl``) or
    one per file (``.json``). ``row["trace"]`` describes what a trace does not contain. Lines that
    were cut off when a process was killed are skipped with a warning.

    Args:
        path: A file, or the folder of a run, an evaluation or exported trajectories.
        read: Called with the size of each line in bytes, to show progress.

    Yields:
        One record per rollout. Within an iteration, groups are in the order in which they finished.

    Raises:
        RecordError: There are no rollouts, or a line is damaged or has a different schema version.
            In the last two cases, the message names the file and, in ``.jsonl`` files, the line.
    """
    for file in record_files(path):
        broken = 0
        with file.open("rb") as opened:
            for number, line in enumerate(_lines(opened, file), 1):
                read(len(line))
                place = f"{file}" if is_trace_file(file) else f"{file}, line {number}"
                try:
                    row = _row(line)
                    for rollout in [] if row is None else rows_of(row):
                        yield RolloutRecord(rollout)
                    if row is None and is_trace_file(file):
                        raise RecordError("The file is empty or truncated; expected a trace.")
                except RecordError as error:
                    raise RecordError(f"{place}: {error}") from None
                broken += row is None and bool(line.strip())
        if broken:
            logger.warning(
                "%s: skipped %d truncated lines, written by a killed process.", file, broken
            )


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, or its whole content if it is a single trace."""
    if not is_trace_file(path):
        yield from file
        return
    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise RecordError(f"{path} is larger than {LARGEST:,} bytes; expected a trace.")
    yield content


def _row(line: bytes) -> Row | None:
    """Parse a line. Returns None if it is blank or truncated, or raises RecordError if damaged."""
    if not (line := line.strip()):
        return None
    try:
        try:
            row = from_json(line)
        except ValueError:  # from_json rejects lone surrogates and more than 200 levels of nesting
            row = json.loads(line)
    except (ValueError, RecursionError) as error:
        try:
            from_json(line, allow_partial="trailing-strings")
        except ValueError:
            raise RecordError(f"The line is not valid JSON: {error}. Remove the line.") from None
        return None
    if not isinstance(row, dict):
        raise RecordError(f"The line is {row!r:.80}; expected a rollout. Remove the line.")
    return row
