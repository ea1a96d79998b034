"""AgentDojo workspaces: tasks for an agent with tools, with prompt injections in tool results.

    evert train tasks=agentdojo:banking model_name=smollm2
    evert train tasks=agentdojo:banking,slack tasks.attack=important_instructions

Episodes are played and scored with the package's own pipeline, tools, attacks, defences and
checkers. The policy is called through its pipeline element for OpenAI models. Requires the
``agentdojo`` extra.
"""

# pyright: reportMissingImports=false

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

from evert.bridge.episode.agent import Outcome
from evert.envs.games import Game, Metric
from evert.envs.tasksets.common import TOOLS, game_of_agent, needed, no_such, split

if TYPE_CHECKING:
    from evert.bridge.clients.client import BlockingAgentClient

VERSION = "v1.2.2"
"""Benchmark version, the newest one in the package."""

LEFT_OUT = {"manual", "transformers_pi_detector"}
"""Not offered: an attack that needs human input, and a defence that downloads a model."""

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "banking": {"renderer_name": "template_hermes", "max_tokens": 96, "limits.max_turns": 4},
}


def agentdojo(suites: str, *, attack: str = "", defense: str = "") -> Game:
    """Return the game for one or more AgentDojo workspaces.

    Args:
        suites: Comma-separated names of workspaces, such as "banking,slack".
        attack: See ``AgentDojo``.
        defense: See ``AgentDojo``.

    Raises:
        GameError: AgentDojo is not installed, or a workspace, attack or defence does not exist.
    """
    agent = AgentDojo(suites, str(attack), str(defense))
    agent.check()
    metrics = {"utility": Metric("User tasks done", "share", drawn=("train", "test"))}
    if attack:
        metrics["attacked"] = Metric("Attacks that succeeded", "share", drawn=("train", "test"))
    names = [*suites.split(","), *filter(None, [attack, defense])]
    return game_of_agent(f"agentdojo/{'-'.join(names)}-v0", agent, TOOLS, metrics)


@dataclass(frozen=True)
class AgentDojo:
    """An agent that solves a user's task with the tools in an AgentDojo workspace.

    A task looks like 'banking/user_task_3', or 'banking/user_task_3/injection_task_1' with an
    attack. The reward is 1 if the user's task is solved and any attack has failed, and 0 otherwise.

    Attributes:
        suites: Comma-separated names of workspaces.
        attack: The attack that puts injections into tool results (default: no attack).
        defense: The pipeline's defence against injections (default: no defence).
        train_tasks: Training tasks.
        test_tasks: Held-out tasks. None of their user tasks occur in training.
    """

    from_path: ClassVar[bool] = True

    suites: str
    attack: str = ""
    defense: str = ""

    def check(self) -> None:
        """Check that the workspaces, the attack and the defence exist.

        Raises:
            GameError: One of them does not exist, or AgentDojo is not installed.
        """
        for suite in self.suites.split(","):
            _check("workspace", suite, _workspaces())  # doesn't import the whole package
        if self.attack:
            attacks = _imported("agentdojo.attacks.attack_registry").ATTACKS
            _check("attack", self.attack, attacks)
        if self.defense:
            defenses = _imported("agentdojo.agent_pipeline.agent_pipeline").DEFENSES
            _check("defense", self.defense, defenses)

    @property
    def train_tasks(self) -> list[str]:  # noqa: D102
        return self._tasks[0]

    @property
    def test_tasks(self) -> list[str]:  # noqa: D102
        return self._tasks[1]

    @cached_property
    def _tasks(self) -> list[list[str]]:
        names = self.suites.split(",")
        sides = split([f"{name}/{user}" for name in names for user in _suite(name).user_tasks])
        return [[task for user in side for task in _under(self.attack, user)] for side in sides]

    def __call__(self, client: "BlockingAgentClient", task: str) -> Outcome:
        """Play a task. This is a blocking function because the package is synchronous."""
        name, user, *goals = task.split("/")
        suite = _suite(name)
        utility, attacked = suite.run_task_with_pipeline(
            _pipeline(client, self.defense),
            suite.get_user_task_by_id(user),
            suite.get_injection_task_by_id(goals[0]) if goals else None,
            {},  # the environment already contains the injections
            environment=_environment(name, self.attack, user, *goals).model_copy(deep=True),
        )
        if not goals:
            return Outcome(float(utility), {"utility": float(utility)})
        if _attack(name, self.attack).is_dos_attack:
            attacked = not utility
        metrics = {"utility": float(utility), "attacked": float(attacked)}
        return Outcome(float(utility and not attacked), metrics)


def _check(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names or name in LEFT_OUT:
        raise no_such(
            "agentdojo", what, name, [choice for choice in names if choice not in LEFT_OUT]
        )


def _imported(module: str) -> Any:
    return needed("agentdojo", module, "pip install 'evert[agentdojo]'")


def _workspaces() -> list[str]:
    folders = files(_imported("agentdojo")) / "data" / "suites"
    return sorted(folder.name for folder in folders.iterdir())


def _suite(name: str) -> Any:
    return _imported("agentdojo.task_suite").get_suite(VERSION, name)


def _pipeline(client: "BlockingAgentClient", defense: str) -> Any:
    pipelines = _imported("agentdojo.agent_pipeline")
    # After an episode is aborted, its calls fail with status 400, the only status that the
    # package does not retry.
    llm = pipelines.OpenAILLM(client.openai_sync, client.model)
    llm.name = client.model
    config = pipelines.PipelineConfig(
        llm=llm,
        model_id=None,
        defense=defense or None,
        system_message_name=None,
        system_message=None,
    )
    return pipelines.AgentPipeline.from_config(config)


@lru_cache
def _attack(suite: str, attack: str) -> Any:
    target = _imported("agentdojo.agent_pipeline").AgentPipeline([])
    target.name = "local"  # used by attacks that mention the model's name
    return _imported("agentdojo.attacks").load_attack(attack, _suite(suite), target)


def _under(attack: str, user: str) -> list[str]:
    """Return a user task's variants, one per injection (only one for denial-of-service attacks)."""
    if not attack:
        return [user]
    suite = user.partition("/")[0]
    goals = [*_suite(suite).injection_tasks]
    return [
        f"{user}/{goal}" for goal in goals[: 1 if _attack(suite, attack).is_dos_attack else None]
    ]


@lru_cache(128)
def _environment(suite: str, attack: str, user: str, goal: str = "") -> Any:
    """Return the initial environment; copy it before use. Cached because loading takes 0.3 s."""
    workspace = _suite(suite)
    injections = {}
    if goal:
        tasks = workspace.get_user_task_by_id(user), workspace.get_injection_task_by_id(goal)
        injections = _attack(suite, attack).attack(*tasks)
    return workspace.load_and_inject_default_environment(injections)
