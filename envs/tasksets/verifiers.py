"""verifiers environments played by the policy, with their own rollouts, rubrics and metrics.

    evert train tasks=verifiers:marble-v1 tasks.pieces=2 model_name=Qwen/Qwen3-8B

In verifiers 0.4, an environment consists of a taskset and harnesses ("v1", ``verifiers_v1.py``). In
earlier versions, it is returned by a ``load_environment`` function ("v0", ``verifiers_v0.py``). The
two need separate virtual environments. Install packages from the Environments Hub first.
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
"""The package that contains verifiers' built-in tasksets."""

INSTALL = "pip install verifiers==0.4.0 evert, in a separate virtual environment"


def verifiers(name: str, **options: Any) -> Game:
    """Create a ``Game`` from a verifiers environment.

    Args:
        name: The environment's name as used with verifiers, such as "marble-v1".
        **options: For v0, the arguments of ``load_environment``. For v1, settings for the
            environment, such as ``agent.harness.id``; settings that the environment does not have
            are passed to the taskset. ``eval.KEY`` applies only to the held-out tasks.

    Raises:
        GameError: verifiers is not installed, the environment does not exist, or it requires a
            sandbox.
    """
    needed("verifiers", "verifiers", INSTALL)
    agent = Verifiers(name, options)
    _ = agent.environment  # raise errors early
    return game_of_agent(f"verifiers/{_module_name(name)}", agent, TOOLS)


@dataclass(frozen=True)
class Verifiers:
    """An agent that plays a verifiers environment. A task is 'train/3' or 'eval/3'.

    Attributes:
        name: As in ``verifiers``.
        options: As in ``verifiers``.
        train_tasks: Tasks from the train split.
        test_tasks: The eval split, or 20% of the train split if there is no eval split.
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
        """The environment, loaded once per process."""
        return _loaded(self.name, repr(self.options))

    def _tasks(self) -> tuple[list[str], list[str]]:
        splits = self.environment.splits
        ids = {key: [f"{key}/{n}" for n in range(len(tasks))] for key, tasks in splits.items()}
        return (ids["train"], ids["eval"]) if "eval" in ids else split(ids["train"])

    async def __call__(self, client: "AgentClient", task: str) -> Outcome:
        """Play an episode.

        Raises:
            RuntimeError: verifiers reported an error, which is quoted in the message.
        """
        part, _, number = task.partition("/")
        return await self.environment.play(client, part, int(number))


@lru_cache
def _loaded(name: str, options: str) -> "V0Environment | V1Environment":
    """Load an environment. ``options`` is a repr because dicts are not hashable."""
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
            f"tasks=verifiers:{name} requires a version of verifiers older than 0.4 "
            f"({type(error).__name__}: {error}). Install verifiers 0.3.1 and evert in a separate "
            "virtual environment."
        ) from error


def _module_name(name: str) -> str:
    return name.rpartition("/")[2].partition("@")[0].replace("-", "_")


def _module_of(name: str) -> str:
    """Return the module that verifiers imports for a name like 'owner/my-env@0.1'."""
    module = _module_name(name)
    candidates = [f"{BUILTIN}.{module.lower()}", module, module.lower()]
    for candidate in candidates:
        try:
            if find_spec(candidate):
                return candidate
        except (ImportError, ValueError):  # the parent package is missing or broken
            continue
    installed = _installed()
    local = [path.stem for path in Path().glob("*.py")]
    raise no_such("This Python", "verifiers environment", name, [*installed, *local], installed)


def _installed() -> list[str]:
    """Return verifiers' built-in tasksets and the modules of packages that require verifiers."""
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
