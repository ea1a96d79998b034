"""Classifies and describes the reasons why episodes failed.

This module is used in training and evaluation:

    Failure        why one episode failed; its kind is one of ``KINDS``
    failure_of     returns the failure for the exception that ended a rollout
    failure_in     returns the failure in a trajectory: a scored error, no model call, or a context
                   overflow
    Failures       the failures of several episodes: counts by kind, and the most frequent errors
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openai import BadRequestError, UnprocessableEntityError
from tinker_cookbook.rl.types import Trajectory

from evert.bridge.env.endings import AGENT_ERROR, AGENT_TIMEOUT, AGENT_TRACEBACK, CUT_REPLY, NO_CALL
from evert.bridge.errors import AgentError, AgentTimeoutError, RewardError
from evert.bridge.redaction import redacted
from evert.bridge.tracebacks import agent_traceback
from evert.trainers.rundir.metrics import SKIPPED
from evert.trainers.system.files import BATCHES, read_jsonl

OVERFLOW, NO_REWARD, WRONG_NAME = "context_overflow", "no_reward", "wrong_model_name"
REFUSED_REQUEST = "refused_request"
REFUSALS = (BadRequestError, UnprocessableEntityError)
"""Errors from a policy's endpoint that affect one request. Its other errors affect all requests."""
KINDS = {
    AGENT_ERROR: ("agent error", "Fix the agent at the line shown in the traceback."),
    AGENT_TIMEOUT: ("timeout", "Find out what the agent is waiting for, or raise agent_timeout."),
    WRONG_NAME: (
        "wrong model name",
        "Use the policy's name in the agent, or add the name that the agent uses to policy_names=.",
    ),
    NO_REWARD: ("episode without a reward", "Make the agent return a number."),
    NO_CALL: (
        "episode without a model call",
        "Make the agent call the model through its client, or with the policy's name.",
    ),
    OVERFLOW: (
        "context overflow",
        "Make the agent send shorter prompts, or use a model with a longer context.",
    ),
    REFUSED_REQUEST: (
        "refused request",
        "Make sure the agent only uses tools, schemas, images and lengths that the endpoint "
        "supports.",
    ),
}
"""Maps each kind of failure to its name and what to do about it."""
UNREADABLE = "The agent can't parse the model's reply."
CAUSES = {
    r"(OPENAI|ANTHROPIC|GEMINI|GOOGLE)_(API|ADMIN)_KEY|API key was provided|authentication method":
        "The agent's SDK requires an API key. Calls to the policy don't need one, so set any "
        "value: OPENAI_API_KEY=unused, ANTHROPIC_API_KEY=unused or GEMINI_API_KEY=unused.",
    re.escape(CUT_REPLY):
        "If the agent needs the whole reply, raise max_tokens. Otherwise, fix the agent at the "
        "line shown in the traceback.",
    r"^(Attribute|Type)Error: 'coroutine' object":
        "Add await before this call in the agent, which must be an `async def` function. In a "
        "regular `def` function, use a synchronous client: OpenAI instead of AsyncOpenAI.",
    r"can't be used in 'await' expression":
        "Calls to a synchronous client can't be awaited. Declare the agent as `async def`, and "
        "use AsyncOpenAI instead of OpenAI.",
    r"^(API(Connection|Timeout|Status)|Authentication|PermissionDenied|RateLimit|InternalServer)Error:":
        "A service that the agent calls, or a frozen model's endpoint, could not be reached or "
        "returned an error. Check its address, API key and limits.",
    r"^CommandError:": "Run the agent's command manually. Its last output is shown above.",
    r"JSONDecodeError|ValidationError|Output\w*Pars|[Cc]ould not parse|could not convert string to "
    r"float|invalid literal for int": UNREADABLE,
}  # fmt: skip
"""Maps patterns in an agent's error to what to do about it. The first match wins."""
NOT_SCORED = (
    "If the agent fails because of the model's replies, give these episodes the worst reward: "
    "on_agent_error=-1.0."
)
SCORED = (
    "The model can't learn from rewards that are all equal. Use a model that sometimes succeeds, "
    "raise max_tokens, or warm up the model (warm_up_steps=)."
)
"""Extra advice on unscored and on scored failures, if the model's replies may be the cause."""
MOST_LINES = 8
"""Maximum number of lines to show of an error message."""
MOST_ALIKE = 5
"""Maximum number of different failures to keep. Similar failures count as one."""
_UNKNOWN_MODEL = "; the policy is called "
"""Text in the error message if the agent called an unknown model (``Routes.hint``)."""


@dataclass(frozen=True)
class Failure:
    """Why an episode failed."""

    kind: str
    """One of ``KINDS``."""
    error: str
    """The exception's class and message."""
    traceback: str = ""
    """The traceback, with only the agent's frames (may be empty)."""
    is_scored: bool = False
    """Whether ``on_agent_error`` gave the episode a reward."""

    @property
    def alike(self) -> tuple[str, ...]:
        """A key that is the same for failures that differ only in numbers or names."""
        return self.kind, self.error.partition(":")[0], self.remedy

    @property
    def remedy(self) -> str:
        """What the user can do about the failure."""
        usual = KINDS[self.kind][1]
        if self.kind != AGENT_ERROR:
            return usual
        remedies = (remedy for cause, remedy in CAUSES.items() if re.search(cause, self.error))
        remedy = next(remedies, usual)
        if remedy not in (usual, UNREADABLE):
            return remedy
        return f"{remedy} {SCORED if self.is_scored else NOT_SCORED}"


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure behind an exception, or None if the error may affect other episodes."""
    if isinstance(error, AgentTimeoutError):
        return Failure(AGENT_TIMEOUT, str(error))
    if isinstance(error, RewardError):
        return Failure(NO_REWARD, f"{RewardError.__name__}: {error}")
    if isinstance(error, REFUSALS):
        return Failure(REFUSED_REQUEST, f"{type(error).__name__}: {error}")
    if not isinstance(error, AgentError):
        return None
    text = str(error).partition(" model calls: ")[2] or str(error)
    traceback = agent_traceback(error.__cause__) if error.__cause__ is not None else ""
    return Failure(_kind_of(text), f"{error.cause_name}: {text}", redacted(traceback))


def failure_in(trajectory: Trajectory) -> Failure | None:
    """Return the failure recorded in an episode's trajectory, or None if nothing failed."""
    last = trajectory.transitions[-1]
    if error := str(last.logs.get(AGENT_ERROR, "")):
        timeout = f"stop/{AGENT_TIMEOUT}" in last.metrics
        kind = AGENT_TIMEOUT if timeout else _kind_of(error)
        return Failure(kind, error, str(last.logs.get(AGENT_TRACEBACK, "")), is_scored=True)
    if OVERFLOW in last.logs:
        return Failure(OVERFLOW, str(last.logs[OVERFLOW]))
    if NO_CALL in last.metrics:
        text = str(last.logs.get(NO_CALL, ""))
        return Failure(WRONG_NAME if _UNKNOWN_MODEL in text else NO_CALL, text)
    return None


def _kind_of(text: str) -> str:
    return WRONG_NAME if _UNKNOWN_MODEL in text else AGENT_ERROR


@dataclass(frozen=True)
class Failures:
    """The failures of several episodes: counts by kind, and examples with their frequency.

    ``found`` contains at most ``MOST_ALIKE`` examples, one for each group of similar failures, most
    frequent first.
    """

    episodes: int
    kinds: Mapping[str, int]
    found: Sequence[tuple[Failure, int]] = ()

    @classmethod
    def of(cls, episodes: int, pairs: Iterable[tuple[Failure, int]]) -> "Failures":
        """Aggregate (failure, frequency) pairs from ``episodes`` episodes."""
        first: dict[tuple[str, ...], Failure] = {}
        kinds, times = Counter[str](), Counter[tuple[str, ...]]()
        for failure, count in pairs:
            kinds[failure.kind] += count
            times[failure.alike] += count
            first.setdefault(failure.alike, failure)
        often = [(first[alike], count) for alike, count in times.most_common(MOST_ALIKE)]
        return cls(episodes, dict(kinds.most_common()), often)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Failures":
        """Parse a record created with ``asdict``.

        Raises:
            KeyError, TypeError, ValueError: The record is corrupt or from a different version.
        """
        examples = [(Failure(**failure), int(count)) for failure, count in record["found"]]
        kinds = {kind: int(count) for kind, count in dict(record["kinds"]).items()}
        is_known = {*kinds, *(failure.kind for failure, _ in examples)} <= KINDS.keys()
        texts = [text for failure, _ in examples for text in (failure.error, failure.traceback)]
        if not is_known or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"a failure's text is missing, or its kind is not one of {[*KINDS]}")
        return cls(int(record["episodes"]), kinds, examples)

    @property
    def count(self) -> int:
        """How many episodes failed."""
        return sum(self.kinds.values())

    @property
    def share(self) -> float:
        """The fraction of episodes that failed (0 if there are no episodes)."""
        return self.count / self.episodes if self.episodes else 0.0

    @property
    def commonest(self) -> Failure | None:
        """An example of the most frequent failure, or None if nothing failed."""
        return self.found[0][0] if self.found else None

    def summary(self) -> str:
        """Summarize in one line how many episodes failed, why, and whether they were scored."""
        kinds = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in self.kinds.items())
        scored = " and were scored" * (bool(self.found) and all(f.is_scored for f, _ in self.found))
        text = f"{self.count} of {self.episodes} episodes failed{scored}"
        return text + f" ({kinds})" * bool(kinds)

    def describe(self) -> str:
        """Return the summary, followed by the most frequent failure and what to do about it."""
        if not self.found:
            return self.summary()
        failure, times = self.found[0]
        often = f"most common, {times} times" if times > 1 else "one of them"
        lines = [self.summary(), f"{often}: {shortened(failure.error)}"]
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
        return "\n".join([*lines, failure.remedy])


def merge(sets: Sequence[Failures]) -> Failures:
    """Combine the failures of several sets of episodes."""
    pairs = [pair for failures in sets for pair in failures.found]
    merged = Failures.of(sum(failures.episodes for failures in sets), pairs)
    kinds = sum((Counter(failures.kinds) for failures in sets), Counter())
    return replace(merged, kinds=dict(kinds.most_common()))


def shortened(text: str) -> str:
    """Return the first few lines of an error message."""
    lines = text.strip().splitlines()
    return "\n  ".join([*lines[:MOST_LINES], *["..."] * (len(lines) > MOST_LINES)])


def _plural(kind: str, count: int) -> str:
    name = KINDS[kind][0]
    if count == 1:
        return name
    return name.replace("episode ", "episodes ") if name.startswith("episode ") else f"{name}s"


def read_batches(path: Path) -> tuple[Failures, int]:
    """Return the failures in all of a run's batches, and how many batches were skipped."""
    failures, skipped = list[Failures](), 0
    for record in read_jsonl(path / BATCHES):
        with suppress(KeyError, TypeError, ValueError):  # written by a different version
            failures.append(Failures.read(record))
            skipped += bool(record["metrics"][SKIPPED])
    return merge(failures), skipped
