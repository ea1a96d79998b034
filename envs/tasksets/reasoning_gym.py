"""reasoning-gym tasks, created by its generators and scored by its scorers.

    evert train tasks=reasoning_gym:chain_sum tasks.max_terms=2 model_name=smollm2
    evert train tasks=reasoning_gym:chain_sum,leg_counting model_name=smollm2
    evert train tasks=reasoning_gym:chain_sum tasks.levels=3 model_name=smollm2

You can use this module as an example for your own taskset: it has training and held-out tasks, an
agent, a reward and metrics. Requires the ``reasoning`` extra.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from evert.bridge.isolation import isolated_score
from evert.bridge.off_loop import off_loop
from evert.envs.games import Game, GameError, MadeTasks, Metric
from evert.envs.tasksets.answers import may_be_read
from evert.envs.tasksets.common import (
    ONE_IN,
    STOPPED_METRIC,
    game_of_agent,
    needed,
    no_such,
)

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

OFFLINE = {"chain_sum": {"max_tokens": 32}, "letter_counting": {"max_tokens": 32}}
"""The tasks that ``evert evaluate tasks=all-offline`` includes, with their settings."""

SIZE = 10_000
"""Number of items per generator, and number of training tasks."""

OF_A_LEVEL = 100
"""Training tasks per level. There are few, so that a curriculum plays each task several times."""

HELD_OUT = 100
"""Number of held-out tasks."""

_TRIES = 1000

_making = threading.Lock()  # some generators use the global state of ``random``


def reasoning_gym(names: str, **arguments: Any) -> Game:
    """Return the game for one or more reasoning-gym generators.

    Args:
        names: Comma-separated names of generators.
        **arguments: Arguments for ``Reasoning``.

    Raises:
        GameError: A generator does not exist or does not accept the arguments.
    """
    generators = names.split(",")
    agent = Reasoning(*generators, **arguments)
    agent.check()
    metrics = {
        "solved": Metric("Answers with the full score", "share", drawn=("train", "test")),
        **STOPPED_METRIC,
    }
    if len(agent.kinds) > 1:
        metrics |= {_metric(kind): Metric(f"Score in {kind}", "score") for kind in agent.kinds}
    return game_of_agent(
        f"reasoning_gym/{'-'.join(generators)}-v0",
        agent,
        recipe={
            "steps": 40,
            "batch_size": 12,
            "group_size": 16,
            "learning_rate": 3e-4,
            "max_tokens": 64,
            "eval_every": 10,
            "save_every": 10,
            "demonstrations": f"{__name__}:{agent!r}.demonstrations",
            "sampler": "evert:Curriculum" if agent.levels else "",
        },
        metrics=metrics,
    )


class Reasoning:
    """An agent that asks a reasoning-gym question and scores the answer.

    A task is an item's number. The reward is the generator's score for the answer, from 0 to 1. The
    reward is 0 if the scorer raises or exceeds its time or memory limit, or if the answer is not
    safe to evaluate (``answers.py``). The answer is the text between ``<answer>`` and
    ``</answer>``, or the whole reply if there are no such tags. Scorers run in an isolated process.

    Args:
        *names: Names of generators, such as "chain_sum". Tasks cycle through the generators.
        prompt: The system message, or the name of one of reasoning-gym's prompts ("default" asks
            for reasoning and answer tags). By default, there is no system message.
        seed: Seed for the items.
        size: Number of items per generator.
        levels: Number of levels to use from reasoning-gym's curricula, starting with the easiest.
            The levels take precedence over ``arguments``. By default, curricula are not used.
        **arguments: Settings for the generators' configurations, such as ``min_terms=2``.

    Attributes:
        kinds: The names of the generators, or "chain_sum_level0" and so on if levels are used.
        train_tasks: ``SIZE`` tasks, or ``OF_A_LEVEL`` per kind if levels are used. None of their
            questions occur in ``test_tasks``.
        test_tasks: ``HELD_OUT`` tasks.
    """

    from_path = True

    def __init__(
        self,
        *names: str,
        prompt: str = "",
        seed: int = 0,
        size: int = SIZE,
        levels: int = 0,
        **arguments: Any,
    ) -> None:
        self._names = names
        self.levels = levels
        ends = [f"_level{level}" for level in range(levels)] or [""]
        self.kinds = [f"{name}{end}" for name in names for end in ends]
        self._prompt = prompt
        self._arguments = {"seed": seed, "size": size, **arguments}
        length = OF_A_LEVEL * len(self.kinds) if levels else SIZE
        self.train_tasks = MadeTasks(length, partial(self.task_at, held_out=False))
        self.test_tasks = MadeTasks(HELD_OUT, partial(self.task_at, held_out=True))

    def __repr__(self) -> str:
        usual = {"prompt": "", "seed": 0, "size": SIZE, "levels": 0}
        all_ = {"prompt": self._prompt, "levels": self.levels, **self._arguments}
        settings = {key: value for key, value in all_.items() if value != usual.get(key)}
        options = [f"{key}={value!r}" for key, value in sorted(settings.items())]
        return f"Reasoning({', '.join([*map(repr, self._names), *options])})"

    def check(self) -> None:
        """Check that the generators can be created.

        Raises:
            GameError: reasoning-gym is not installed, or a generator cannot be created.
        """
        _ = self._datasets

    @cached_property
    def _datasets(self) -> list[Any]:
        factory = needed("reasoning_gym", "reasoning_gym.factory", "pip install 'evert[reasoning]'")
        unknown = [name for name in self._names if name not in factory.DATASETS]
        if unknown:
            raise no_such("reasoning-gym", "generator", unknown[0], factory.DATASETS)
        return [
            _new_dataset(factory, name, self._arguments, level) for name, level in self._sources
        ]

    @property
    def _sources(self) -> list[tuple[str, int | None]]:
        """The generator's name and the level (if any) for each of ``kinds``."""
        levels = range(self.levels) if self.levels else [None]
        return [(name, level) for name in self._names for level in levels]

    def item(self, task: int) -> tuple[Any, dict[str, Any]]:
        """Return a task's generator and its item (question, answer, metadata)."""
        number, kind = divmod(task, len(self.kinds))
        with _making:
            dataset = self._datasets[kind]
            return dataset, dataset[number]

    def task_at(self, place: int, *, held_out: bool) -> int:
        """Return the training or held-out task at an index.

        Raises:
            GameError: No question was found for this split.
        """
        draw = random.Random(place)
        for _ in range(_TRIES):
            number = draw.randrange(self._arguments["size"])
            task = number * len(self.kinds) + place % len(self.kinds)
            question = self.item(task)[1]["question"]
            # Split by the text of the question, so that no question appears in both splits.
            if (crc32(question.encode()) % ONE_IN == 0) == held_out:
                return task
        raise GameError(
            f"{self} generates too few distinct questions to hold some out: {question!r:.200}. "
            "Use arguments that produce more variety."
        )

    async def __call__(self, client: "AgentClient", task: int) -> float:
        """Ask a question and score the answer."""
        _, item = await off_loop(self.item, task)  # takes a second for knight_swap
        completion = await client.chat.completions.create(messages=self._messages(item))
        kind = task % len(self.kinds)
        name, level = self._sources[kind]
        scorer = (_scorer, name, self._arguments, level)
        reply = completion.choices[0].message.content or ""
        score = await isolated_score(client, scorer, item, reply)
        if not (isinstance(score, float) and 0 <= score <= 1):
            score = 0.0  # the answer may have compromised the isolated process
        client.metric("solved", float(score >= 1))
        if len(self.kinds) > 1:
            client.metric(_metric(self.kinds[kind]), score)
        return score

    def demonstrations(self, seed: int) -> Iterator[list[dict[str, str]]]:
        """Yield an endless stream of questions with the generators' answers, for a warm-up.

        Raises:
            GameError: The generators provide no answers that get the full score.
        """
        draw = random.Random(seed)
        while True:
            item, answer = self._example(draw)
            reply = f"<answer>{answer}</answer>" if self._prompt else answer
            yield [*self._messages(item), {"role": "assistant", "content": reply}]

    def _example(self, draw: random.Random) -> tuple[dict[str, Any], str]:
        for _ in range(_TRIES):
            dataset, item = self.item(draw.choice(self.train_tasks))
            answer = str(item["answer"])
            if dataset.score_answer(answer, item) >= 1:
                return item, answer
        raise GameError(f"{self} has no answers to demonstrate. Leave out warm_up_steps.")

    def _messages(self, item: dict[str, Any]) -> list[dict[str, str]]:
        from reasoning_gym.utils import SYSTEM_PROMPTS

        prompt = SYSTEM_PROMPTS.get(self._prompt, self._prompt)
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, {"role": "user", "content": item["question"]}]


def _scorer(
    name: str, arguments: dict[str, Any], level: int | None
) -> Callable[[dict[str, Any], str], float]:
    """Return a function that scores replies for a generator. Runs in an isolated process."""
    factory = needed("reasoning_gym", "reasoning_gym.factory", "pip install 'evert[reasoning]'")
    dataset = _new_dataset(factory, name, arguments, level)
    with suppress(Exception):
        dataset.score_answer(str(dataset[0]["answer"]), dataset[0])  # this may import modules
    return partial(_scored, name, dataset)


def _scored(name: str, dataset: Any, item: dict[str, Any], reply: str) -> float:
    from reasoning_gym.utils import extract_answer

    answer = extract_answer(reply)
    answer = reply.strip() if answer is None else answer
    return float(dataset.score_answer(answer, item)) if may_be_read(name, answer) else 0.0


def _metric(kind: str) -> str:
    return f"score_{kind}"


def _new_dataset(factory: Any, name: str, arguments: dict[str, Any], level: int | None) -> Any:
    fields = factory.DATASETS[name][1].__dataclass_fields__
    lost = [key for key in arguments if key not in fields]
    if lost:
        raise GameError(
            f"reasoning-gym's {name} has no setting {lost[0]!r}. Available: prompt, levels, "
            f"{', '.join(fields)}."
        )
    try:
        if level is not None:
            arguments = _at_level(factory, name, arguments, level)
        return factory.create_dataset(name, **arguments)
    except GameError:
        raise
    except Exception as error:  # generators validate their arguments with assert
        raise GameError(
            f"Could not create reasoning-gym's {name} with {arguments}: {type(error).__name__}: "
            f"{error}. Check the arguments (tasks.KEY=VALUE)."
        ) from error


def _at_level(factory: Any, name: str, arguments: dict[str, Any], level: int) -> dict[str, Any]:
    if not factory.has_curriculum(name):
        raise GameError(f"reasoning-gym has no curriculum for {name}. Leave out tasks.levels.")
    curriculum = factory.create_curriculum(name)
    attributes = curriculum.attributes.values()
    count = max((len(attribute.levels) for attribute in attributes), default=0)
    if level >= count:
        raise GameError(f"reasoning-gym's {name} curriculum has only {count} levels. Use fewer.")
    curriculum.set_global_level(level)
    return dict(vars(curriculum.generate_configuration(arguments)))
