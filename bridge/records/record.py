"""``RolloutRecord``: a rollout that was written down, and ``read_records``: all of a run."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tinker
from pydantic_core import from_json
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import RecordError
from evert.bridge.records.files import record_files
from evert.bridge.records.rows import SCHEMA, Row
from evert.bridge.records.schema import CHUNK, check_row
from evert.bridge.tokens.logprobs import remembering
from evert.bridge.tokens.token_log import FlatPrompt, chunks_of

logger = logging.getLogger(__name__)


class RolloutRecord:
    """One rollout of an agent: prompts and actions token for token, and the conversations.

    Args:
        row: As it was written; also the attribute ``row``. ``docs/records.md`` lists its fields.

    Raises:
        RecordError: It is none of this version's schema, or a field is amiss.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        found = row.get("evert_schema")
        if found != SCHEMA:
            raise RecordError(
                f"A record has evert_schema={found!r}; this version of evert reads {SCHEMA}. Read "
                "it with the version that wrote it (its field versions), or record anew."
                if found is not None
                else f"A line holds no rollout of evert's: it has no evert_schema, but {[*row]}. "
                "Name a run or an evaluation that was made with record=True. (The Cookbook's own "
                "summaries of rollouts have neither tokens nor messages.)"
            )
        check_row(row)
        self.row = row

    def __repr__(self) -> str:
        return f"<RolloutRecord of {self.row['agent']}: {self.turns} turns, reward {self.reward:g}>"

    @property
    def turns(self) -> int:
        """Number of actions. An episode without a model call has none."""
        steps = self.row["steps"]  # the runner makes one up where there was no call
        is_played = len(steps) > 1 or any(step["ac_len"] or step["ob_len"] for step in steps)
        return len(steps) if is_played else 0

    @property
    def reward(self) -> float:
        """All that was earned, what the group added included."""
        return float(self.row["total_reward"])

    @property
    def task(self) -> Any:
        """The task; ``NO_TASK`` for an agent without one. A RecordError if JSON cannot hold it."""
        if "task_repr" in self.row:
            raise RecordError(
                f"The task of this record is {self.row['task_repr']}, which JSON cannot give back "
                "as it was. Pass it: task=..."
            )
        return self.row.get("task", NO_TASK)

    @property
    def metrics(self) -> dict[str, float]:
        """Those of all turns, summed."""
        total = Counter[str]()
        for step in self.row["steps"]:
            total.update(step["metrics"])
        return {name: float(value) for name, value in total.items()}

    @property
    def text(self) -> str:
        """The last reply, as it was sampled; "" without one."""
        return str(self.row["steps"][-1]["text"]) if self.turns else ""

    @cached_property
    def prompts(self) -> list[FlatPrompt]:
        """The tokens of each turn's prompt; an image stands for itself."""
        found: list[FlatPrompt] = []
        for step in self.row["steps"]:
            after, new = step["prompt"]["after"], map(_element, step["prompt"]["tokens"])
            before = [] if after is None else found[after] + self.row["steps"][after]["tokens"]
            found.append([*before, *new])
        return found

    def action(self, turn: int) -> TokensWithLogprobs:
        """What was sampled at a turn."""
        step = self.row["steps"][turn]
        tokens, logprobs = [*step["tokens"]], step["logprobs"]
        return remembering(TokensWithLogprobs(tokens, logprobs, step["stop_reason"]))

    def trajectory(self) -> Trajectory:
        """The rollout, as it was played; what a group added is ``row["final_reward"]``."""
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

    def asked(self, turn: int) -> list[Row]:
        """The messages of the call that a turn answered; a RecordError if they were not kept."""
        return self._conversation(turn, self._reply)

    def messages(self, turn: int = -1) -> list[Row]:
        """A conversation as the agent had it, up to a turn's reply; by default the last one's.

        A RecordError if it was not kept.
        """
        turn = range(self.turns)[turn]
        return [*self.asked(turn), self._reply(turn)]

    def sampled_messages(self, turn: int) -> list[Row]:
        """The same as the model had it: tools as its renderer showed them, replies as sampled.

        Each reply is a text, with its thinking and the markup of its calls.
        """
        messages = [*self._conversation(turn, self._said), self._said(turn)]
        prefix = self._calls(turn)[0].get("prefix", [])
        has_system = bool(prefix) and messages[0]["role"] in ("system", "developer")
        return [*prefix, *messages[has_system and isinstance(messages[0].get("content"), str) :]]

    def tools(self, turn: int) -> list[Row]:
        """The tools of the call that a turn answered; none: []."""
        found: list[Row] = self._calls(turn)[0].get("tools", [])
        return found

    def last_turns(self) -> list[int]:
        """The turns that conversations end with: no other goes on from their replies."""
        calls = [step.get("call", {}) for step in self.row["steps"][: self.turns]]
        gone_on = {call.get("after") for call in calls}
        given = [self.row["steps"][turn].get("reply") is not None for turn in range(self.turns)]
        last = self.turns - 1  # what ended the episode was the end of a conversation, too
        return [t for t in range(self.turns) if t not in gone_on and (given[t] or t == last)]

    def _conversation(self, turn: int, reply: Callable[[int], Row]) -> list[Row]:
        first, *later = self._calls(turn)
        messages: list[Row] = [*first["messages"]]
        for call in later:
            messages += [reply(call["after"]), *call["messages"]]
        return messages

    def _calls(self, turn: int | None) -> list[Row]:
        """The calls of a conversation up to a turn's, the first one first."""
        found = list[Row]()
        while turn is not None:
            found.insert(0, self._call(turn))
            turn = found[0]["after"]
        return found

    def _call(self, turn: int) -> Row:
        call: Row | None = self.row["steps"][turn].get("call")
        if call is None:
            raise RecordError(
                f"Turn {turn} of this record has no messages: they were not kept. Have the Env "
                "watched before it is played: recorder.watch(env)."
            )
        return call

    def _reply(self, turn: int) -> Row:
        return self.row["steps"][turn].get("reply") or self._said(turn)

    def _said(self, turn: int) -> Row:
        return {"role": "assistant", "content": self.row["steps"][turn]["text"]}


def _element(token: Any) -> Any:
    return token if isinstance(token, int) else CHUNK.validate_python(token)


def read_records(
    path: str | Path, read: Callable[[int], object] = lambda size: None
) -> Iterator[RolloutRecord]:
    """The rollouts that were written down, one after the other.

    Lines that a kill cut off are left out, and said in the log.

    Args:
        path: The folder of a run or of an evaluation, or a file.
        read: Is told the bytes of each line, to show how far it is.

    Yields:
        One a rollout; the groups of an iteration stand in the order in which they were over.

    Raises:
        RecordError: There are none, or a line is damaged or of another schema: names it.
    """
    for file in record_files(path):
        broken = 0
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                read(len(line))
                try:
                    row = _row(line)
                    if row is not None:
                        yield RolloutRecord(row)
                except RecordError as error:
                    raise RecordError(f"{file}, line {number}: {error}") from None
                broken += row is None and bool(line.strip())
        if broken:
            logger.warning("%s: %d broken lines are left out, as a kill leaves them.", file, broken)


def _row(line: bytes) -> Row | None:
    """The row of a line; None: the line is blank or cut off. Any other raises a RecordError."""
    if not (line := line.strip()):
        return None
    try:
        try:
            row = from_json(line)
        except ValueError:  # it takes no lone surrogates, and no more than 200 levels
            row = json.loads(line)
    except (ValueError, RecursionError) as error:
        try:
            from_json(line, allow_partial="trailing-strings")
        except ValueError:
            raise RecordError(f"The line is no JSON: {error}. Take it out.") from None
        return None
    if not isinstance(row, dict):
        raise RecordError(f"The line is {row!r:.80}; expected a rollout. Take it out.")
    return row
