"""AgentDojo's workspaces: tasks for an agent with tools, and prompt injections in tool results.

    evert train tasks=agentdojo:banking model_name=smollm2
    evert train tasks=agentdojo:banking,slack tasks.attack=important_instructions

The package's pipeline, tools, attacks, defences and checkers play and score an episode. Its
pipeline element for OpenAI models calls the policy. This needs the extra ``agentdojo``.
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
"""Version of the benchmark's tasks, the newest in the package."""

LEFT_OUT = {"manual", "transformers_pi_detector"}
"""An attack that asks a person, and a defence that downloads a model."""

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "banking": {"renderer_name": "template_hermes", "max_tokens": 96, "limits.max_turns": 4},
}


def agentdojo(suites: str, *, attack: str = "", defense: str = "") -> Game:
    """Return the game of one or more of AgentDojo's workspaces.

    Args:
        suites: Names of workspaces, separated by commas: "banking,slack".
        attack: See ``AgentDojo``.
        defense: See ``AgentDojo``.

    Raises:
        GameError: AgentDojo is not installed, or has no such workspace, attack or defence.
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
    """An agent that does a user's task with the tools of an AgentDojo workspace.

    A task is 'banking/user_task_3', or with an attack 'banking/user_task_3/injection_task_1'. The
    reward is 1 if the user's task is done and the attack, if any, has failed; else 0.

    Attributes:
        suites: Names of workspaces, separated by commas.
        attack: The attack that writes injections into the tools' results; "": none.
        defense: The pipeline's defence against injections; "": none.
        train_tasks: Tasks to train on.
        test_tasks: Held-out tasks. Their user tasks are never trained on, whatever the injection.
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
            _check("workspace", suite, _workspaces())  # before the whole package is imported
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
        """Play a task. This is not a coroutine, because the package blocks."""
        name, user, *goals = task.split("/")
        suite = _suite(name)
        utility, attacked = suite.run_task_with_pipeline(
            _pipeline(client, self.defense),
            suite.get_user_task_by_id(user),
            suite.get_injection_task_by_id(goals[0]) if goals else None,
            {},  # the injections are in the environment already
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
    # When an episode is aborted, the SDK raises for a 400; the package retries all other errors.
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
    target.name = "local"  # attacks that name the model read this name
    return _imported("agentdojo.attacks").load_attack(attack, _suite(suite), target)


def _under(attack: str, user: str) -> list[str]:
    """Return a user's task with each injection, or with only one for a denial of service."""
    if not attack:
        return [user]
    suite = user.partition("/")[0]
    goals = [*_suite(suite).injection_tasks]
    return [
        f"{user}/{goal}" for goal in goals[: 1 if _attack(suite, attack).is_dos_attack else None]
    ]


@lru_cache(128)
def _environment(suite: str, attack: str, user: str, goal: str = "") -> Any:
    """Return the tools' initial environment, to be copied. Cached, since reading takes 0.3 s."""
    workspace = _suite(suite)
    injections = {}
    if goal:
        tasks = workspace.get_user_task_by_id(user), workspace.get_injection_task_by_id(goal)
        injections = _attack(suite, attack).attack(*tasks)
    return workspace.load_and_inject_default_environment(injections)
