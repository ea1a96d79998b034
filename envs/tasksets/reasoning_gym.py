"""reasoning-gym's tasks, made without end and scored by their own scorers.

    evert train tasks=reasoning_gym:chain_sum tasks.max_terms=2 model_name=smollm2
    evert train tasks=reasoning_gym:chain_sum,leg_counting model_name=smollm2

A taskset, and a pattern for others: tasks, held-out tasks, an agent, a reward and metrics in one
file. It needs the extra ``reasoning``.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload
from zlib import crc32

from evert.envs.games import Game, GameError, Metric
from evert.envs.tasksets.common import ONE_IN, needed, no_such

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

SIZE = 10_000
"""Items that a generator makes, and tasks to train on."""

HELD_OUT = 100
"""Held-out tasks."""

_TRIES = 1000


def reasoning_gym(names: str, **arguments: Any) -> Game:
    """The game of one or more of reasoning-gym's generators.

    Args:
        names: Of the generators, with commas between.
        **arguments: Of ``Reasoning``.

    Raises:
        GameError: There is no such generator, or it does not take an argument.
    """
    generators = names.split(",")
    agent = Reasoning(*generators, **arguments)
    agent.check()
    path = f"{__name__}:{agent!r}"
    metrics = {"solved": Metric("Answers with the full score", "share", drawn=("train", "test"))}
    if len(generators) > 1:
        metrics |= {_metric(name): Metric(f"Score in {name}", "score") for name in generators}
    return Game(
        f"reasoning_gym/{'-'.join(generators)}-v0",
        agent=path,
        train_tasks=f"{path}.train_tasks",
        test_tasks=f"{path}.test_tasks",
        recipe={
            "steps": 40,
            "batch_size": 12,
            "group_size": 16,
            "learning_rate": 3e-4,
            "max_tokens": 64,
            "eval_every": 10,
            "save_every": 10,
            "demonstrations": f"{path}.demonstrations",
        },
        metrics=metrics,
    )


class Reasoning:
    """An agent that asks a question of reasoning-gym's and scores the answer.

    The task is an item's number. The reward is the generator's own score of the answer, 0 to 1. The
    answer is what the reply has between ``<answer>`` and ``</answer>``, or else the whole reply.

    Args:
        *names: Of reasoning-gym's generators: "chain_sum". Tasks are of each in turn.
        prompt: The system's message, or the name of one of reasoning-gym's ("default" asks for
            thoughts and answer tags). "": none.
        seed: Of the items.
        size: Items that a generator makes.
        **arguments: Of the generators' own configurations: ``min_terms=2``.

    Attributes:
        train_tasks: ``SIZE`` tasks; their questions are never those of ``test_tasks``.
        test_tasks: ``HELD_OUT`` tasks.
    """

    from_path = True

    def __init__(
        self, *names: str, prompt: str = "", seed: int = 0, size: int = SIZE, **arguments: Any
    ) -> None:
        self._names = names
        self._prompt = prompt
        self._arguments = {"seed": seed, "size": size, **arguments}
        self.train_tasks: Sequence[int] = _Split(self, SIZE, held_out=False)
        self.test_tasks: Sequence[int] = _Split(self, HELD_OUT, held_out=True)

    def __repr__(self) -> str:
        usual = {"prompt": "", "seed": 0, "size": SIZE}
        all_ = {"prompt": self._prompt, **self._arguments}
        given = {key: value for key, value in all_.items() if value != usual.get(key)}
        named = [f"{key}={value!r}" for key, value in sorted(given.items())]
        return f"Reasoning({', '.join([*map(repr, self._names), *named])})"

    def check(self) -> None:
        """Make the generators.

        Raises:
            GameError: reasoning-gym is not installed, or cannot make them.
        """
        _ = self._datasets

    @cached_property
    def _datasets(self) -> list[Any]:
        factory = needed("reasoning_gym", "reasoning_gym.factory", "pip install 'evert[reasoning]'")
        known, create = factory.DATASETS, factory.create_dataset
        unknown = [name for name in self._names if name not in known]
        if unknown:
            raise no_such("reasoning-gym", "generator", unknown[0], known)
        return [_made(create, name, known[name][1], self._arguments) for name in self._names]

    def item(self, task: int) -> tuple[Any, dict[str, Any]]:
        """The generator of a task, and its item: question, answer, metadata."""
        number, which = divmod(task, len(self._names))
        dataset = self._datasets[which]
        return dataset, dataset[number]

    def task_at(self, place: int, *, held_out: bool) -> int:
        """The task at a place of the held-out ones, or of those to train on.

        Raises:
            GameError: No question is found that is on that side.
        """
        draw = random.Random(place)
        for _ in range(_TRIES):
            number = draw.randrange(self._arguments["size"])
            task = number * len(self._names) + place % len(self._names)
            question = self.item(task)[1]["question"]
            # By its text, so that no question is on both sides.
            if (crc32(question.encode()) % ONE_IN == 0) == held_out:
                return task
        raise GameError(
            f"{self} makes too few different questions to hold some out: {question!r:.200}. Give "
            "it arguments that make more."
        )

    async def __call__(self, client: "AgentClient", task: int) -> float:
        """Ask a question, and score the answer."""
        from reasoning_gym.utils import extract_answer

        dataset, item = self.item(task)
        completion = await client.chat.completions.create(messages=self._asked(item))
        reply = completion.choices[0].message.content or ""
        answer = extract_answer(reply)
        score = float(dataset.score_answer(reply.strip() if answer is None else answer, item))
        client.metric("solved", float(score >= 1))
        if len(self._names) > 1:
            client.metric(_metric(self._names[task % len(self._names)]), score)
        return score

    def demonstrations(self, seed: int) -> Iterator[list[dict[str, str]]]:
        """Questions with the generator's own answers, for a warm-up: without end, by a seed.

        Raises:
            GameError: The generator gives no answer that it scores in full.
        """
        draw = random.Random(seed)
        while True:
            item, answer = self._answered(draw)
            said = f"<answer>{answer}</answer>" if self._prompt else answer
            yield [*self._asked(item), {"role": "assistant", "content": said}]

    def _answered(self, draw: random.Random) -> tuple[dict[str, Any], str]:
        for _ in range(_TRIES):
            dataset, item = self.item(self.train_tasks[draw.randrange(SIZE)])
            answer = str(item["answer"])
            if dataset.score_answer(answer, item) >= 1:
                return item, answer
        raise GameError(f"{self} has no answers to show. Leave warm_up_steps out.")

    def _asked(self, item: dict[str, Any]) -> list[dict[str, str]]:
        from reasoning_gym.utils import SYSTEM_PROMPTS

        prompt = SYSTEM_PROMPTS.get(self._prompt, self._prompt)
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, {"role": "user", "content": item["question"]}]


class _Split(Sequence[int]):
    """The held-out tasks, or those to train on."""

    def __init__(self, agent: Reasoning, length: int, *, held_out: bool) -> None:
        self._agent, self._places, self._held_out = agent, range(length), held_out

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[place] for place in self._places[index]]
        return self._agent.task_at(self._places[index], held_out=self._held_out)


def _metric(name: str) -> str:
    return f"score_{name}"


def _made(create: Any, name: str, config: Any, arguments: dict[str, Any]) -> Any:
    fields = config.__dataclass_fields__
    lost = [key for key in arguments if key not in fields]
    if lost:
        raise GameError(
            f"reasoning-gym's {name} takes no {lost[0]!r}. It takes prompt, {', '.join(fields)}."
        )
    try:
        return create(name, **arguments)
    except Exception as error:  # its checks are asserts, and each generator has its own
        raise GameError(
            f"reasoning-gym's {name} cannot be made with {arguments}: {type(error).__name__}: "
            f"{error}. Check the arguments: tasks.KEY=VALUE."
        ) from error
