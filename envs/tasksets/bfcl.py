"""BFCL's multi-turn rows: user requests and simulated APIs, whose state is checked every turn.

    evert train tasks=bfcl:multi_turn_base model_name=smollm2
    evert train tasks=bfcl:multi_turn_base,multi_turn_miss_func model_name=smollm2

The rows, APIs and checker come from the Berkeley Function-Calling Leaderboard. The APIs run in an
isolated process (``bfcl_apis.py``). The package's dependencies conflict with evert's but aren't
needed here, so install it with ``pip install --no-deps bfcl-eval``. There is no ``OFFLINE`` because
prompts of 4,000 to 8,000 tokens are too long for a small model on a few cores.
"""

# pyright: reportMissingImports=false

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar

from evert.bridge.episode.agent import Outcome
from evert.bridge.isolation import STOPPED, IsolateError, isolate
from evert.envs.games import Game, Metric
from evert.envs.tasksets.common import (
    STOPPED_METRIC,
    TOOLS,
    game_of_agent,
    needed,
    no_such,
    split,
)

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

CATEGORIES = [f"multi_turn_{part}" for part in ("base", "miss_func", "miss_param", "long_context")]

PYTHON = " Note that the provided function is in Python 3 syntax."
FLOAT = " This is a float type value."
"""Sentences that the package appends to function and argument descriptions."""


def bfcl(categories: str) -> Game:
    """Return the game for one or more of BFCL's multi-turn categories.

    Args:
        categories: Comma-separated names of categories.

    Raises:
        GameError: The package is not installed, or a category does not exist.
    """
    names = categories.split(",")
    for name in names:
        if name not in CATEGORIES:
            raise no_such("bfcl", "category", name, CATEGORIES)
    solved = Metric("Rows solved", "share", drawn=("train", "test"))
    metrics = {"solved": solved, **STOPPED_METRIC}
    if len(names) > 1:
        metrics |= {f"solved_{name}": Metric(f"Solved of {name}", "share") for name in names}
    return game_of_agent(f"bfcl/{'-'.join(names)}-v0", Bfcl(categories), TOOLS, metrics)


@dataclass
class Bfcl:
    """An agent that gives the policy tools and a user's requests, one per turn.

    A task is a row's id, like 'multi_turn_base_17'. The reward is 1 if, after every turn, the APIs
    are in the same state as after the row's correct calls, and the results of the policy's calls
    include the results of the correct calls. Otherwise, it is 0.

    Attributes:
        categories: Comma-separated names of categories.
        train_tasks: Training tasks.
        test_tasks: Held-out rows. The same row numbers are held out in all categories, because rows
            with the same number are variants of the same scenario.
    """

    from_path: ClassVar[bool] = True

    categories: str

    def __post_init__(self) -> None:
        names = self.categories.split(",")
        self.train_tasks, self.test_tasks = (
            [f"{name}_{number}" for name in names for number in side]
            for side in split(range(len(_rows(names[0]))))
        )

    async def __call__(self, client: "AgentClient", task: str) -> Outcome:
        """Play a row's turns and check the calls."""
        category = task.rpartition("_")[0]
        row = deepcopy(_rows(category)[task])
        truth = row.pop("ground_truth")
        stopped = 0.0
        async with isolate(_apis) as ask:
            try:
                await ask("begin", row, truth)
                turns = await _play(client, row, ask)
                verdict = await ask("check", turns) if len(turns) == len(truth) else {}
            except IsolateError:
                stopped = 1.0
                verdict = {"error_type": "an API used too much time or memory"}
        solved = float(verdict.get("valid") is True)
        client.log(ended="solved" if solved else verdict.get("error_type") or "too many steps")
        several = "," in self.categories
        return Outcome(
            solved,
            {"solved": solved, STOPPED: stopped}
            | ({f"solved_{category}": solved} if several else {}),
        )


def _apis() -> Callable[..., Any]:
    """Return the function to run in the isolated process. It calls an ``ApiState``'s methods."""
    from evert.envs.tasksets.bfcl_apis import ApiState  # imports the package

    episode = ApiState()
    return lambda name, *args: methodcaller(name, *args)(episode)


async def _play(client: "AgentClient", row: dict[str, Any], ask: Any) -> list[list[list[Any]]]:
    """Return the calls by turn and step. If a turn takes too many steps, stop early."""
    messages: list[dict[str, Any]] = []
    tools, turns = _tools(row), list[list[list[Any]]]()
    for number, question in enumerate(row["question"]):
        if str(number) in row.get("missed_function", {}):
            docs = _docs(row)
            tools |= {name: docs[name] for name in row["missed_function"][str(number)]}
            news = _constant("default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
            question = [{"role": "user", "content": news}]
        messages += question
        steps: list[list[Any]] = []
        while calls := await _calls(client, messages, [*tools.values()]):
            steps.append([call[1:] for call in calls])
            answers = await ask("call", steps[-1])
            messages += [
                {"role": "tool", "tool_call_id": call[0], "content": answer}
                for call, answer in zip(calls, answers, strict=True)
            ]
            if len(steps) > _constant("default_prompts").MAXIMUM_STEP_LIMIT:
                return turns
        turns.append(steps)
    return turns


async def _calls(client: "AgentClient", messages: list[Any], tools: list[Any]) -> list[list[Any]]:
    """Return the id, name and arguments of each call, or [] if any arguments aren't an object."""
    completion = await client.chat.completions.create(messages=messages, tools=tools)
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    calls = [
        [call.id, call.function.name, json.loads(call.function.arguments)]
        for call in message.tool_calls or ()
        if call.type == "function"
    ]
    return calls if all(isinstance(arguments, dict) for _, _, arguments in calls) else []


# -- the package's data --------------------------------------------------------------------------


def _constant(module: str) -> Any:
    return needed("bfcl", f"bfcl_eval.constants.{module}", "pip install --no-deps bfcl-eval")


def _lines(*path: str) -> list[dict[str, Any]]:
    text = files(needed("bfcl", "bfcl_eval", "pip install --no-deps bfcl-eval")) / "data"
    return [json.loads(line) for line in text.joinpath(*path).read_text().splitlines()]


@lru_cache
def _rows(category: str) -> dict[str, dict[str, Any]]:
    file = f"BFCL_v4_{category}.json"
    truths = {row["id"]: row["ground_truth"] for row in _lines("possible_answer", file)}
    return {row["id"]: {**row, "ground_truth": truths[row["id"]]} for row in _lines(file)}


def _tools(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tools of a row's APIs by name, without the tools that are added later."""
    missed = {name for names in row.get("missed_function", {}).values() for name in names}
    docs = _docs(row)
    first = {name: tool for name, tool in docs.items() if name not in missed}
    for tool in first.values():
        tool["function"]["description"] += PYTHON
    return first


def _docs(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    file_of = _constant("executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    docs = [
        doc
        for api in row["involved_classes"]
        for doc in _lines("multi_turn_func_doc", file_of[api])
    ]
    return {
        doc["name"]: {
            "type": "function",
            "function": {**doc, "parameters": _typed(doc["parameters"])},
        }
        for doc in docs
    }


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a schema for the chat API. The package's schemas use Python type names."""
    converted = {**schema, "type": _constant("type_mappings").GORILLA_TO_OPENAPI[schema["type"]]}
    if schema["type"] == "float" and "description" in converted:
        converted["format"], converted["description"] = "float", converted["description"] + FLOAT
    if "items" in converted:
        converted["items"] = _typed(converted["items"])
    if "properties" in converted:
        converted["properties"] = {
            name: _typed(field) for name, field in converted["properties"].items()
        }
    return converted
