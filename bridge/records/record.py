"""``RolloutRecord``: a recorded rollout. ``read_records``: all rollouts of a run."""

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
    """One recorded rollout: its prompts and actions as tokens, and its conversations.

    Args:
        row: The row of the file; also an attribute. ``docs/records.md`` lists its fields.

    Attributes:
        has_tokens: Whether token ids were recorded; another program's trace may have only text.

    Raises:
        RecordError: The row does not have this version's schema, or a field is wrong.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        schema = row.get("evert_schema")
        if schema != SCHEMA:
            raise RecordError(
                f"A record has evert_schema={schema!r}; this version of evert reads {SCHEMA}. Read "
                "it with the version that wrote it (see its field versions), or record again."
                if schema is not None
                else f"A line is not an evert rollout: it has no evert_schema, only {[*row]}. "
                "Name a run or an evaluation that was made with record=True. (The Cookbook's own "
                "summaries of rollouts have neither tokens nor messages.)"
            )
        check_row(row)
        self.row = row
        self.has_tokens = has_tokens(row)

    def __repr__(self) -> str:
        return f"<RolloutRecord of {self.row['agent']}: {self.turns} turns, reward {self.reward:g}>"

    @property
    def turns(self) -> int:
        """The number of actions; 0 for an episode without a model call."""
        steps = self.row["steps"]  # if there is no call, the runner adds an empty step
        is_played = len(steps) > 1 or any(
            step["ac_len"] or step["ob_len"] or "call" in step for step in steps
        )
        return len(steps) if is_played else 0

    @property
    def reward(self) -> float:
        """The total reward, including the group's."""
        return float(self.row["total_reward"])

    @property
    def task(self) -> Any:
        """The task, or ``NO_TASK``; raises a RecordError if the task was not recorded."""
        with suppress(KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return literal_eval(self.row["task_literal"])
        if "task_repr" in self.row:
            raise RecordError(
                f"The task of this record is {self.row['task_repr']}, which cannot be restored. "
                "Pass it to replay or BranchEnv (task=...); a reward function may look at "
                "record.row['task_repr']."
            )
        return self.row.get("task", NO_TASK)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, each summed over all turns."""
        total = Counter[str]()
        for step in self.row["steps"]:
            total.update(step["metrics"])
        return {name: float(value) for name, value in total.items()}

    @property
    def text(self) -> str:
        """The text of the last action; "" if there is no action."""
        return str(self.row["steps"][-1]["text"]) if self.turns else ""

    @cached_property
    def prompts(self) -> list[FlatPrompt]:
        """The tokens of each turn's prompt, in which an image is one chunk.

        Raises a RecordError, as ``action`` does, if they were not recorded (``has_tokens``).
        """
        _check_tokens(self.row)
        prompts: list[FlatPrompt] = []
        for step in self.row["steps"]:
            after, new = step["prompt"]["after"], map(_element, step["prompt"]["tokens"])
            before = [] if after is None else prompts[after] + self.row["steps"][after]["tokens"]
            prompts.append([*before, *new])
        return prompts

    def action(self, turn: int) -> TokensWithLogprobs:
        """Return a turn's action."""
        _check_tokens(self.row)
        step = self.row["steps"][turn]
        tokens, logprobs = [*step["tokens"]], step["logprobs"]
        return keep_logprobs(TokensWithLogprobs(tokens, logprobs, step["stop_reason"]))

    def trajectory(self) -> Trajectory:
        """Return the trajectory as played, without the group's ``row["final_reward"]``."""
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
        """Return whether the agent gave up a turn's call and never read the reply."""
        return GIVEN_UP in self.row["steps"][turn]["metrics"]

    def asked(self, turn: int) -> list[Row]:
        """Return the messages of a turn's call; raise a RecordError if they were not kept."""
        messages = list[Row]()
        for call in map(self.call, self.path(turn)):
            if "again" not in call:
                messages += [] if call["after"] is None else [self._reply(call["after"])]
                messages += call["messages"]
        return messages

    def messages(self, turn: int = -1) -> list[Row]:
        """Return the conversation up to a turn's reply; raise a RecordError if it was not kept."""
        turn = range(self.turns)[turn]
        return [*self.asked(turn), self._reply(turn)]

    def sampled_messages(self, turn: int, *, parsed: bool = False) -> list[Row]:
        """Return the model's conversation up to a turn's reply, as it was in the prompt.

        It includes the tools as shown, instructions on a reply's format, and retried replies.
        Replies have their thinking and markup or, if ``parsed``, the fields that the agent got.
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
        """Return the turns of a conversation up to ``turn``, including retried turns."""
        turns, call = [turn], self.call(turn)
        while (before := call.get("again", call["after"])) is not None:
            turns.insert(0, before)
            call = self.call(before)
        return turns

    def tools(self, turn: int) -> list[Row]:
        """Return the tools of a turn's call; [] if there are none."""
        tools: list[Row] = self.call(self.path(turn)[0]).get("tools", [])
        return tools

    def last_turns(self) -> list[int]:
        """Return the last turn of each conversation: no other turn continues its reply.

        Calls that the agent gave up are left out.
        """
        steps = self.row["steps"][: self.turns]
        # The turn that ended the episode also ended a conversation.
        ends = [turn for turn, step in enumerate(steps) if step.get("reply") or step is steps[-1]]
        turns = [turn for turn in ends if not self.is_given_up(turn)]
        gone_on = {steps[turn].get("call", {}).get("after") for turn in turns}
        return [turn for turn in turns if turn not in gone_on]

    def call(self, turn: int) -> Row:
        """Return a turn's call; raise a RecordError if its messages were not kept."""
        call: Row | None = self.row["steps"][turn].get("call")
        if call is None:
            raise RecordError(
                f"Turn {turn} of this record has no messages, because they were not kept. Call "
                "recorder.watch(env) before the Env is played."
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
            "It can be viewed, rescored and exported as texts (format=sft)."
        )


def _element(token: Any) -> Any:
    return token if isinstance(token, int) else CHUNK.validate_python(token)


def read_records(
    path: str | Path, read: Callable[[int], object] = lambda size: None
) -> Iterator[RolloutRecord]:
    """Read recorded rollouts or other programs' traces, one at a time.

    Traces are OpenEnv's ``TrainingTrace`` and Harbor's ATIF, one per line (``.jsonl``) or per file
    (``.json``). ``row["trace"]`` says what they lack. Lines that a killed process cut off are
    skipped with a warning.

    Args:
        path: A file, or the folder of a run, an evaluation or exported trajectories.
        read: Called with the size of each line in bytes, to show progress.

    Yields:
        One record per rollout. An iteration's groups are in the order in which they ended.

    Raises:
        RecordError: No file has rollouts; or a line is damaged or has a different schema, and the
            message names the line.
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
                        raise RecordError("The file is empty or cut off; expected a trace.")
                except RecordError as error:
                    raise RecordError(f"{place}: {error}") from None
                broken += row is None and bool(line.strip())
        if broken:
            logger.warning("%s: %d lines are skipped; a killed process cut them off.", file, broken)


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield a file's lines; a file with one trace counts as one line."""
    if not is_trace_file(path):
        yield from file
        return
    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise RecordError(f"{path} has more than {LARGEST:,} bytes; expected a trace.")
    yield content


def _row(line: bytes) -> Row | None:
    """Parse a line; None if it is blank or cut off. Raises a RecordError if it is damaged."""
    if not (line := line.strip()):
        return None
    try:
        try:
            row = from_json(line)
        except ValueError:  # from_json refuses lone surrogates and more than 200 levels
            row = json.loads(line)
    except (ValueError, RecursionError) as error:
        try:
            from_json(line, allow_partial="trailing-strings")
        except ValueError:
            raise RecordError(f"The line is not JSON: {error}. Remove it.") from None
        return None
    if not isinstance(row, dict):
        raise RecordError(f"The line is {row!r:.80}; expected a rollout. Remove it.")
    return row
