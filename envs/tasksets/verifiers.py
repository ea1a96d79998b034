"""verifiers' environments: its rollouts, rubrics and metrics, with the policy as the model.

    evert train tasks=verifiers:marble-v1 tasks.pieces=2 model_name=Qwen/Qwen3-8B

verifiers 0.4 has tasksets and harnesses ("v1", ``verifiers_v1.py``); earlier versions have
environments, which a function ``load_environment`` returns ("v0", ``verifiers_v0.py``). Each needs
its own virtual environment. Packages from the Environments Hub must be installed first.
"""

import importlib
import pkgutil
import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from evert.bridge.episode.agent import Outcome
from evert.envs.games import Game, GameError
from evert.envs.tasksets.common import TOOLS, game_of_agent, needed, no_such, split

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient
    from evert.envs.tasksets.verifiers_v0 import V0Environment
    from evert.envs.tasksets.verifiers_v1 import V1Environment

BUILTIN = "verifiers.v1.tasksets"
"""The package with verifiers' own tasksets."""

INSTALL = "pip install verifiers==0.4.0 evert, in a separate virtual environment"


def verifiers(name: str, **options: Any) -> Game:
    """Make a ``Game`` from one of verifiers' environments.

    Args:
        name: The environment's name, as verifiers itself takes it: "marble-v1".
        **options: v0: the arguments of ``load_environment``. v1: settings of the taskset, or of the
            environment if it has a setting of that name: ``agent.harness.id``. ``eval.KEY`` is a
            setting for only the held-out tasks.

    Raises:
        GameError: verifiers is not installed or has no such environment, or the environment needs a
            sandbox.
    """
    needed("verifiers", "verifiers", INSTALL)
    agent = Verifiers(name, options)
    _ = agent.environment  # raises errors before the first step
    return game_of_agent(f"verifiers/{_module_name(name)}", agent, TOOLS)


@dataclass(frozen=True)
class Verifiers:
    """An agent that plays an environment of verifiers; a task is 'train/3' or 'eval/3'.

    Attributes:
        name: As in ``verifiers``.
        options: As in ``verifiers``.
        train_tasks: Tasks to train on, from the train split.
        test_tasks: The eval split; without one, a fifth of the train split.
    """

    from_path: ClassVar[bool] = True

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def train_tasks(self) -> list[str]:  # noqa: D102
        return self._tasks()[0]

    @property
    def test_tasks(self) -> list[str]:  # noqa: D102
        return self._tasks()[1]

    @property
    def environment(self) -> "V0Environment | V1Environment":
        """The environment, which each process loads once."""
        return _loaded(self.name, repr(self.options))

    def _tasks(self) -> tuple[list[str], list[str]]:
        splits = self.environment.splits
        ids = {key: [f"{key}/{n}" for n in range(len(tasks))] for key, tasks in splits.items()}
        return (ids["train"], ids["eval"]) if "eval" in ids else split(ids["train"])

    async def __call__(self, client: "AgentClient", task: str) -> Outcome:
        """Play an episode.

        Raises:
            RuntimeError: verifiers reports an error, which the message quotes.
        """
        part, _, number = task.partition("/")
        return await self.environment.play(client, part, int(number))


@lru_cache
def _loaded(name: str, options: str) -> "V0Environment | V1Environment":
    """Load an environment; ``options`` is the repr of the options, since a dict is not hashable."""
    arguments: dict[str, Any] = literal_eval(options)
    has_v0, is_v0 = find_spec("verifiers.envs") is not None, False
    try:
        is_v0 = hasattr(importlib.import_module(_module_of(name)), "load_environment")
        if is_v0 and has_v0:
            from evert.envs.tasksets.verifiers_v0 import V0Environment

            return V0Environment(name, arguments)
        from evert.envs.tasksets.verifiers_v1 import V1Environment

        return V1Environment(name, arguments)
    except (AttributeError, ImportError, TypeError) as error:
        if has_v0 or not (is_v0 or re.search(r"'verifiers(?!\.v1)", str(error))):
            raise
        raise GameError(
            f"tasks=verifiers:{name} was written for verifiers before 0.4 ({type(error).__name__}: "
            f"{error}). Install verifiers 0.3.1 and evert in a separate virtual environment."
        ) from error


def _module_name(name: str) -> str:
    return name.rpartition("/")[2].partition("@")[0].replace("-", "_")


def _module_of(name: str) -> str:
    """Return the module that verifiers imports for a name in its own form: 'owner/my-env@0.1'."""
    module = _module_name(name)
    candidates = [f"{BUILTIN}.{module.lower()}", module, module.lower()]
    for candidate in candidates:
        try:
            if find_spec(candidate):
                return candidate
        except (ImportError, ValueError):  # a parent package is missing or broken
            continue
    installed = _installed()
    local = [path.stem for path in Path().glob("*.py")]
    raise no_such("This Python", "environment of verifiers", name, [*installed, *local], installed)


def _installed() -> list[str]:
    """Names of verifiers' own tasksets, and modules of packages that require verifiers."""
    names = {
        module
        for module, packages in packages_distributions().items()
        for need in requires(packages[0]) or ()
        if re.match(r"verifiers\b(?!-)", need) and "extra ==" not in need
    }
    if find_spec(BUILTIN.rpartition(".")[0]):
        path = importlib.import_module(BUILTIN).__path__
        names |= {module.name for module in pkgutil.iter_modules(path)}
    return sorted(names)
