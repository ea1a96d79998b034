"""Settings of ``evert evaluate`` and ``evert play``."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

import chz

from evert.envs.games import Game, games
from evert.trainers.config.arguments import gather, read_settings, settings_help
from evert.trainers.config.episode import EpisodeSettings
from evert.trainers.config.fields import RecipeError, by_path, parallel, setting, size
from evert.trainers.config.recipes import choose_recipe, game_of, taskset_of
from evert.trainers.config.train import MAPPINGS as TRAINING
from evert.trainers.config.train import SharedSettings, TrainSettings

T = TypeVar("T", bound="PlayingSettings")

MAPPINGS = {
    key: TRAINING[key] for key in ("tasks", "chat_template", "limits", "parse_error_policy")
}
MAPPINGS["frozen"] = TRAINING["models"]  # typed as models.KEY
"""An example for each mapping setting."""


NAMES = (
    "a base model, a folder, runs/NAME, runs/NAME@STEP, tinker://..., openai:MODEL, "
    "https://HOST/v1#MODEL, vllm:http://HOST:PORT/v1#MODEL, or a player of the game"
)


@chz.chz
class PlayingSettings(SharedSettings):
    """Settings shared by ``evert evaluate`` and ``evert play``."""

    agent: str = setting("", "import path of your agent, 'package.module:function'")
    train_tasks: str = setting("", "import path or file of the training tasks (with agent=)")
    test_tasks: str = setting("", "import path or file of the held-out tasks (with agent=)")
    frozen: Mapping[str, Any] = by_path(
        "frozen model that answers the agent's calls to KEY: a base model, a folder, runs/NAME, "
        "..., openai:MODEL; takes the same options as in training: models.KEY.temperature=0, ..."
    )
    opponent: str = setting(
        "",
        "opponent that plays the other seats of a multi-seat agent: one of the game's opponents, "
        "or a model as in models.KEY (default: the evaluated model plays all seats)",
    )
    split: Literal["all", "train", "test"] = setting("all", "which tasks to play")
    max_tasks: int | None = size(200, "maximum tasks per split, evenly spaced; None plays all")
    seed: int = setting(0, "first seed")
    temperature: float = size(1.0, "sampling temperature; 0 is greedy", 0)
    max_tokens: int | None = size(
        None, "maximum tokens per reply (default: as in training; no limit for openai:)"
    )
    search: bool = setting(False, "whether to give the player a search tool")

    model_name: str = setting("", "base model of tinker://... or vllm:... models")
    base_url: str = setting("https://api.openai.com/v1", "endpoint of openai:... models")
    api_key_env: str | None = setting(
        None,
        "environment variable with the API key (default: OPENAI_API_KEY, or VLLM_API_KEY for "
        "vllm:)",
    )
    record: bool = setting(False, "whether to write all rollouts to OUT/rollouts.jsonl")

    @chz.validate
    def _who(self) -> None:
        if self.env and self.agent:
            raise RecipeError(f"Got both env={self.env} and agent={self.agent}; expected one.")
        if self.opponent and len(self.seats) < 2:
            raise RecipeError(
                f"opponent={self.opponent} is set, but seats={','.join(self.seats) or '(none)'}. "
                "An opponent requires an agent with at least two seats, for example seats=x,o."
            )

    @property
    def name(self) -> str:
        """Short name of the game, taskset or agent."""
        name = self.env or self.tasks.get("id")
        return name or self.agent.partition(":")[2]

    @cached_property
    def game(self) -> Game | None:
        """The game or taskset, or None for an agent."""
        return game_of(self.subject) if self.env or self.tasks else None

    @property
    def subject(self) -> dict[str, Any]:
        """The game, taskset or agent, as training settings."""
        settings = {"env": self.env, "tasks": self.tasks, "agent": self.agent}
        return {key: value for key, value in settings.items() if value}

    @property
    def players(self) -> Mapping[str, str]:
        """Import paths of the game's scripted players, by name."""
        return self.game.players if self.game else {}

    @property
    def overrides(self) -> dict[str, Any]:
        """Settings that replace a run's: device, threads and, if set, renderer, dtype, template."""
        candidates = {"renderer_name": self.renderer_name, "dtype": self.dtype}
        overrides: dict[str, Any] = {
            key: value for key, value in candidates.items() if value not in (None, "", "auto")
        }
        if self.chat_template:
            overrides["chat_template"] = self.chat_template
        return {"device": self.device, "threads": self.threads, **overrides}

    def run_of(self, model: str) -> TrainSettings:
        """Return the settings of a run that would train the model on these tasks."""
        settings = self.subject
        if model:
            settings["model_name"] = model
        _, preset = choose_recipe(settings, self.game)
        values = {**preset, **settings, **self.overrides}
        if self.agent:
            values["train_tasks"] = self.train_tasks or self.test_tasks or [None]  # not played
        return self.played_as(TrainSettings(**values))

    def played_as(self, run: TrainSettings) -> TrainSettings:
        """Return a run's settings with the episode settings of this evaluation."""
        episodes = {name: getattr(self, name) for name in chz.chz_fields(EpisodeSettings)}
        return chz.replace(run, **episodes)

    def agent_of(self, run: TrainSettings) -> str:
        """Return the import path of the run's agent, or of its variant with a search tool."""
        if not self.search:
            return str(run.agent)
        all_games = [game for game in (self.game, *games().values()) if game is not None]
        twins = dict(twin for game in all_games for twin in game.searching.items())
        if run.agent not in twins:
            raise RecipeError(
                f"search=True is set, but {run.agent} has no variant with a search tool. Leave out "
                "search=, or pass your own agent that can search."
            )
        return twins[run.agent]

    def paths_by_split(self) -> dict[str, str]:
        """Return the tasks' import paths by split; raise ``RecipeError`` if there are none."""
        where = self.game or self
        all_paths = {"train": where.train_tasks, "test": where.test_tasks}
        paths = {split: path for split, path in all_paths.items() if self.split in ("all", split)}
        if not any(paths.values()):
            raise self._no_tasks()
        return {split: path for split, path in paths.items() if path}

    def tasks_by_split(self, objects: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """Return the tasks to play by split; raise ``RecipeError`` if there are none.

        ``objects`` contains tasks that were already loaded by ``named_objects``.
        """
        from evert.bridge.groups.tasks import load_tasks

        loaded = {} if self.game else objects
        tasks = dict[str, Sequence[Any]]()
        for split, path in self.paths_by_split().items():
            listed = loaded.get(f"{split}_tasks")
            tasks[split] = spread(load_tasks(path) if listed is None else listed, self.max_tasks)
        if not any(map(len, tasks.values())):
            raise self._no_tasks()
        return tasks

    def _no_tasks(self) -> RecipeError:
        return RecipeError(
            f"split={self.split}: {self.name} has no such tasks. Choose a different split, or pass "
            "tasks with test_tasks=package.module:TASKS."
        )


@chz.chz
class EvaluateSettings(PlayingSettings):
    """Settings of an evaluation and its episodes."""

    models: tuple[str, ...] = setting((), f"models to evaluate: {NAMES}")
    seeds: int = size(4, "number of episodes per task, each with a different seed")
    success: float = setting(1.0, "minimum reward that counts as a success")
    pass_at: tuple[int, ...] = setting(
        (), "values of k for pass@k, like 1,4,16; must not exceed seeds"
    )
    parallel: int | None = parallel()
    environments: str = setting(
        ".frameworks",
        "folder of virtual environments for tasksets whose packages are not installed in this "
        "Python (with tasks=all-offline)",
    )
    out: str | None = setting(
        None, "new folder, or one to resume (default: evaluations/<env>-<date-time>)"
    )

    @chz.validate
    def _what(self) -> None:
        if outside := [k for k in self.pass_at if not 1 <= k <= self.seeds]:
            raise RecipeError(
                f"pass_at contains {outside[0]}, but seeds={self.seeds}: k must be from 1 to "
                "seeds. Increase seeds= to play more episodes, or choose smaller values."
            )
        if not self.models:
            raise RecipeError("No models to evaluate. Pass models=evert-tiny, for example.")
        has_tasks = self.agent and (self.train_tasks or self.test_tasks)
        if not (self.env or self.tasks or has_tasks):
            raise RecipeError(
                f"No tasks to evaluate on. Pass env= with one of {', '.join(games())}, or your own "
                "agent: agent=package.module:function test_tasks=package.module:TASKS."
            )


ME = "me"
"""Model name for a person who types the replies."""


@chz.chz
class PlaySettings(PlayingSettings):
    """Settings of an episode to play in the terminal."""

    model: str = chz.field(doc=f"who plays: {ME} (you type the replies), {NAMES}")
    task: str = setting(
        "",
        "index (from 0) of a task in env=, tasks= or test_tasks=; if you only pass agent=, the "
        "task itself as JSON or text (default: the first task, if there is one)",
    )
    out: str | None = setting(
        None, "output folder, used with record=True (default: plays/<env>-<date-time>)"
    )

    @chz.validate
    def _what(self) -> None:
        if not (self.env or self.tasks or self.agent):
            raise RecipeError(
                f"No agent to play. Pass env= with one of {', '.join(games())}, or your own "
                "agent: agent=package.module:function task=TASK."
            )

    def paths_by_split(self) -> dict[str, str]:
        """Return the tasks' import paths by split, or {} if ``task`` is the task itself."""
        has_own = self.agent and not (self.train_tasks or self.test_tasks)
        return {} if has_own else PlayingSettings.paths_by_split(self)

    def tasks_by_split(self, objects: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """Return the tasks to choose from: held-out tasks or, if there are none, training tasks."""
        if self.paths_by_split():
            tasks = PlayingSettings.tasks_by_split(self, objects)
            return dict([item for item in tasks.items() if len(item[1])][-1:])
        from evert.bridge.episode.agent import NO_TASK

        try:
            return {"test": [json.loads(self.task) if self.task else NO_TASK]}
        except ValueError:
            return {"test": [self.task]}

    def number_of(self, tasks: Sequence[Any]) -> int:
        """Return the index of the task to play; raise ``RecipeError`` if it does not exist."""
        if not self.task or not self.paths_by_split():
            return 0
        if not self.task.isdecimal() or int(self.task) >= len(tasks):
            raise RecipeError(
                f"task={self.task}: expected a number from 0 to {len(tasks) - 1}. To play your own "
                "task, only pass an agent and no tasks: agent=package.module:function task=TASK."
            )
        return int(self.task)


def read_evaluate_settings(
    settings: Mapping[str, Any], recorded: Mapping[str, Any] | None = None
) -> EvaluateSettings:
    """Read evaluation settings. Defaults come from the recorded settings or the recipe."""
    return read_playing_settings(EvaluateSettings, settings, recorded)


def read_playing_settings(
    kind: type[T], settings: Mapping[str, Any], recorded: Mapping[str, Any] | None = None
) -> T:
    """Read settings of class ``kind``. Defaults come from the recorded settings or the recipe."""
    taskset = taskset_of(settings)
    under, game = recorded, None
    if not under:
        subject = {"env": settings.get("env"), "tasks": taskset}
        game = game_of(subject) if subject["env"] or taskset.get("id") else None
        _, preset = choose_recipe(subject, game)
        fields = chz.chz_fields(EpisodeSettings)
        shared = {key: value for key, value in preset.items() if key in fields}
        under = {**shared, "frozen": preset.get("models", {})}
    renamed = {re.sub(r"^models\.", "frozen.", key): value for key, value in settings.items()}
    gathered = gather({**renamed, "tasks": taskset}, MAPPINGS, under)
    result = read_settings(kind, gathered, under, _name_of)
    if game:
        vars(result)["game"] = game  # set the cached property, because loading tasksets can be slow
    return result


def playing_help(kind: type[PlayingSettings], settings: Mapping[str, str]) -> str:
    """Return the help text for the settings, with frozen models shown as ``models.KEY``."""
    return settings_help(kind, settings).replace("frozen.KEY", "models.KEY")


def _name_of(key: str) -> str:
    """Return a setting's user-facing name: frozen models are called ``models.NAME``."""
    return key.replace("frozen", "models", 1) if key.startswith("frozen") else key


def spread(tasks: Sequence[Any], limit: int | None) -> Sequence[Any]:
    """Return at most ``limit`` evenly spaced tasks, or all of them if ``limit`` is None.

    If ``tasks`` is a string, return its first ``limit`` characters instead.
    """
    if limit is None or len(tasks) <= limit:
        return tasks
    if isinstance(tasks, str):
        return tasks[:limit]
    return [tasks[index * len(tasks) // limit] for index in range(limit)]
