"""Why episodes fail: reads failures from exceptions and trajectories, and describes them.

    Failure        why one episode failed; its kind is one of ``KINDS``
    failure_of     reads a failure from the exception that ended a rollout
    failure_in     reads it from a trajectory: a scored error, no model call, a context overflow
    Failures       the failures of several episodes: counts by kind, and the most frequent errors

Training and evaluation count and describe failures with this module.
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
"""Errors of a policy's endpoint that affect one request; its other errors affect all."""
KINDS = {
    AGENT_ERROR: ("agent error", "Correct the agent where the traceback points."),
    AGENT_TIMEOUT: ("timeout", "Find what the agent waits for, or raise agent_timeout."),
    WRONG_NAME: (
        "wrong model name",
        "Use the policy's name in the agent, or pass the agent's name for it in policy_names=.",
    ),
    NO_REWARD: ("episode without a reward", "Have the agent return a number."),
    NO_CALL: (
        "episode without a model call",
        "Have the agent call the model through its client, or by the policy's name.",
    ),
    OVERFLOW: (
        "context overflow",
        "Have the agent send shorter prompts, or use a model with a longer context.",
    ),
    REFUSED_REQUEST: (
        "refused request",
        "Have the agent send only tools, schemas, images and lengths that the endpoint supports.",
    ),
}
"""Kind of failure -> its name, and what to do about it."""
UNREADABLE = "The agent cannot read the model's reply."
CAUSES = {
    r"(OPENAI|ANTHROPIC|GEMINI|GOOGLE)_(API|ADMIN)_KEY|API key was provided|authentication method":
        "The agent's SDK asks for a key. The policy's calls need no key, so set any value: "
        "OPENAI_API_KEY=unused, ANTHROPIC_API_KEY=unused or GEMINI_API_KEY=unused.",
    re.escape(CUT_REPLY):
        "If the agent needs the whole reply, raise max_tokens. Otherwise correct the agent where "
        "the traceback points.",
    r"^(Attribute|Type)Error: 'coroutine' object":
        "Put await before that call of the agent, which must then be an `async def`. In a plain "
        "`def`, use a blocking client: OpenAI instead of AsyncOpenAI.",
    r"can't be used in 'await' expression":
        "A blocking client's calls cannot be awaited. Declare the agent as `async def`, and use "
        "AsyncOpenAI instead of OpenAI.",
    r"^(API(Connection|Timeout|Status)|Authentication|PermissionDenied|RateLimit|InternalServer)Error:":
        "A service that the agent itself calls, or the endpoint of a frozen model, did not answer: "
        "check its address, key and limits.",
    r"^CommandError:": "Run the agent's command by hand; its last output is above.",
    r"JSONDecodeError|ValidationError|Output\w*Pars|[Cc]ould not parse|could not convert string to "
    r"float|invalid literal for int": UNREADABLE,
}  # fmt: skip
"""Pattern in an agent's error -> what to do about it; the first match wins."""
NOT_SCORED = (
    "If the model's replies make the agent fail, score such episodes with the worst reward: "
    "on_agent_error=-1.0."
)
SCORED = (
    "Equal rewards teach nothing: use a model that sometimes succeeds, raise max_tokens, or "
    "warm the model up (warm_up_steps=)."
)
"""Extra advice for unscored and scored failures that the model's replies may have caused."""
MOST_LINES = 8
"""Maximum lines of an error's message that are shown."""
MOST_ALIKE = 5
"""Maximum failures kept for a set of episodes; similar failures count as one."""
_UNKNOWN_MODEL = "; the policy is called "
"""Part of an error's text if the agent called a model that does not exist (``Routes.hint``)."""


@dataclass(frozen=True)
class Failure:
    """The failure of an episode."""

    kind: str
    """One of ``KINDS``."""
    error: str
    """The exception's class and message."""
    traceback: str = ""
    """The agent's own frames; "" if there are none."""
    is_scored: bool = False
    """Whether ``on_agent_error`` gave the episode a reward."""

    @property
    def alike(self) -> tuple[str, ...]:
        """A key that is equal for failures that differ only in numbers or names."""
        return self.kind, self.error.partition(":")[0], self.remedy

    @property
    def remedy(self) -> str:
        """What the user can do about it."""
        usual = KINDS[self.kind][1]
        if self.kind != AGENT_ERROR:
            return usual
        remedies = (remedy for cause, remedy in CAUSES.items() if re.search(cause, self.error))
        remedy = next(remedies, usual)
        if remedy not in (usual, UNREADABLE):
            return remedy
        return f"{remedy} {SCORED if self.is_scored else NOT_SCORED}"


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure behind a rollout's exception; None if it affects other episodes, too."""
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
    """Return the failure in an episode that has a trajectory; None if nothing failed."""
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

    ``found`` has at most ``MOST_ALIKE`` examples, one for each set of similar failures, the most
    frequent first.
    """

    episodes: int
    kinds: Mapping[str, int]
    found: Sequence[tuple[Failure, int]] = ()

    @classmethod
    def of(cls, episodes: int, pairs: Iterable[tuple[Failure, int]]) -> "Failures":
        """Count the failures of ``episodes`` episodes from (failure, frequency) pairs."""
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
        """Read a record that ``asdict`` made.

        Raises:
            KeyError, TypeError, ValueError: Another version wrote the record, or it is damaged.
        """
        examples = [(Failure(**failure), int(count)) for failure, count in record["found"]]
        kinds = {kind: int(count) for kind, count in dict(record["kinds"]).items()}
        is_known = {*kinds, *(failure.kind for failure, _ in examples)} <= KINDS.keys()
        texts = [text for failure, _ in examples for text in (failure.error, failure.traceback)]
        if not is_known or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"a failure has no text, or its kind is not one of {[*KINDS]}")
        return cls(int(record["episodes"]), kinds, examples)

    @property
    def count(self) -> int:
        """How many episodes failed."""
        return sum(self.kinds.values())

    @property
    def share(self) -> float:
        """The share of the episodes that failed; 0 if there are no episodes."""
        return self.count / self.episodes if self.episodes else 0.0

    @property
    def commonest(self) -> Failure | None:
        """An example of the most frequent failure; None if nothing failed."""
        return self.found[0][0] if self.found else None

    def summary(self) -> str:
        """Return a line: how many episodes failed, whether they were scored, and the kinds."""
        kinds = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in self.kinds.items())
        scored = " and were scored" * (bool(self.found) and all(f.is_scored for f, _ in self.found))
        text = f"{self.count} of {self.episodes} episodes failed{scored}"
        return text + f" ({kinds})" * bool(kinds)

    def describe(self) -> str:
        """Return the summary, the most frequent failure with its traceback, and its remedy."""
        if not self.found:
            return self.summary()
        failure, times = self.found[0]
        often = f"most common, {times} times" if times > 1 else "one of them"
        lines = [self.summary(), f"{often}: {shortened(failure.error)}"]
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
        return "\n".join([*lines, failure.remedy])


def merge(sets: Sequence[Failures]) -> Failures:
    """Merge the failures of several sets of episodes."""
    pairs = [pair for failures in sets for pair in failures.found]
    merged = Failures.of(sum(failures.episodes for failures in sets), pairs)
    kinds = sum((Counter(failures.kinds) for failures in sets), Counter())
    return replace(merged, kinds=dict(kinds.most_common()))


def shortened(text: str) -> str:
    """Return the first lines of an error's message."""
    lines = text.strip().splitlines()
    return "\n  ".join([*lines[:MOST_LINES], *["..."] * (len(lines) > MOST_LINES)])


def _plural(kind: str, count: int) -> str:
    name = KINDS[kind][0]
    if count == 1:
        return name
    return name.replace("episode ", "episodes ") if name.startswith("episode ") else f"{name}s"


def read_batches(path: Path) -> tuple[Failures, int]:
    """Return the failures of all batches in a run's folder, and how many batches were skipped."""
    failures, skipped = list[Failures](), 0
    for record in read_jsonl(path / BATCHES):
        with suppress(KeyError, TypeError, ValueError):  # another version's record
            failures.append(Failures.read(record))
            skipped += bool(record["metrics"][SKIPPED])
    return merge(failures), skipped
