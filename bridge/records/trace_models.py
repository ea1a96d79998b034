"""Models for the traces of other programs, which ``traces.py`` converts to record rows.

``Trajectory`` is for Harbor's ATIF format and ``TrainingTrace`` is for OpenEnv. Unknown fields are
ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Row = dict[str, Any]
Content = str | list[Row]
Count = Annotated[int, Field(ge=0)]
Tokens = list[Annotated[int, Field(ge=0, lt=2**32)]]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Fields(BaseModel):
    """A strict model (no type conversion) that ignores unknown fields."""

    model_config = ConfigDict(strict=True, extra="ignore")


class RolloutTrace(Fields):
    """Fields of a rollout, under "evert" in evert's traces. Other traces get the defaults."""

    split: str = "train"
    iteration: Count = 0
    group_idx: Count | None = None
    traj_idx: Count = 0
    total_reward: Number | None = None
    final_reward: Number = 0.0
    agent: str | None = None
    renderer: str = ""
    tokenizer: str | None = None
    seat: str | None = None
    seed: int | None = None
    stop_reason: str | None = None
    task: Any = None
    task_repr: str | None = None
    task_literal: str | None = None
    about: Row = {}


class Extra(Fields):
    """The ``extra`` field of a trajectory."""

    evert: RolloutTrace = RolloutTrace()


class ToolCall(Fields):
    """A tool call in a step."""

    tool_call_id: str
    function_name: str
    arguments: Row


class Result(Fields):
    """A result from a tool or the environment."""

    source_call_id: str | None = None
    content: Content | None = None


class Observation(Fields):
    """The results that follow a step."""

    results: list[Result] = []


class Metrics(Fields):
    """The tokens of a step, or only their counts."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_token_ids: Tokens | None = None
    completion_token_ids: Tokens | None = None
    logprobs: list[Number] | None = None

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        if self.logprobs is not None and self.completion_token_ids is not None:
            _check_length("logprobs", self.logprobs, len(self.completion_token_ids))
        return self


class Step(Fields):
    """A message in a trajectory."""

    source: Literal["system", "user", "agent"]
    message: Content
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Count | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the step was sampled from a model in this episode."""
        return self.source == "agent" and self.llm_call_count != 0 and not self.is_copied_context


class Agent(Fields):
    """The agent that produced a trajectory."""

    name: str
    version: str = "unknown"
    model_name: str | None = None
    tool_definitions: list[Row] | None = None


class Trajectory(Fields):
    """A conversation, including the conversations of subagents."""

    schema_version: str
    agent: Agent
    steps: list[Step]
    extra: Extra | None = None
    subagent_trajectories: list["Trajectory"] | None = None


class Message(BaseModel):
    """A Chat Completions message, with all its fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: Content | None = None
    tool_calls: list[Row] | None = None


class Request(Fields):
    """The agent's request."""

    messages: list[Message] | None = None
    tools: list[Row] | None = None


class Choice(Fields):
    """A reply to the agent."""

    message: Message | None = None
    finish_reason: str | None = None


class Response(Fields):
    """The response to a request."""

    choices: list[Choice] = []


class Metadata(Fields):
    """The metadata of a turn."""

    model: str | None = None
    reward: Number | None = None
    evert: RolloutTrace = RolloutTrace()


class TrainingTurn(Fields):
    """A model call."""

    prompt_token_ids: Tokens
    completion_token_ids: Tokens
    per_token_logps: list[Number]
    loss_mask: list[Annotated[int, Field(ge=0, le=1)]]
    request: Request = Request()
    response: Response = Response()
    metadata: Metadata = Metadata()

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        prompt, completion = len(self.prompt_token_ids), len(self.completion_token_ids)
        _check_length("per_token_logps", self.per_token_logps, completion)
        _check_length("loss_mask", self.loss_mask, prompt + completion)
        return self


class TrainingTrace(Fields):
    """The model calls in a rollout."""

    schema_version: Literal[1] = 1
    turns: list[TrainingTurn]


def _check_length(name: str, values: Sequence[object], expected: int) -> None:
    if len(values) != expected:
        raise ValueError(f"{name} has {len(values)} values; expected {expected}")
