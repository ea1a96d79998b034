"""``ImagePlan``: emulate a task's Dockerfile without building an image.

WORKDIR, ENV and COPY of the task's own files are supported, but only without variables. FROM and
LABEL are ignored. All other instructions require a container, and raise an error.
"""

# pyright: reportMissingImports=false

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import SandboxBuildFailedError

from evert.agents.sandbox import OWN, sandbox_problem, system_folders
from evert.bridge.errors import InvalidDatasetError
from evert.trainers.integrations.harbor.folders import read_task


@dataclass
class ImagePlan:
    """The parsed instructions of a task's Dockerfile."""

    task: str
    folder: Path
    """The build context: the folder that contains the Dockerfile."""
    workdir: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    variables: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[list[Path], str]] = field(default_factory=list)
    """For each COPY: the sources and the absolute target, which is a folder if it ends with "/"."""

    @classmethod
    def of(cls, task: str, folder: Path, config: Any) -> "ImagePlan":
        """Parse a task's Dockerfile.

        Args:
            task: Name of the task, for error messages.
            folder: The task's ``environment`` folder.
            config: The ``[environment]`` table of the task's ``task.toml``, parsed by Harbor.

        Raises:
            SandboxBuildFailedError: The task needs more than local programs and its own files.
        """
        plan = cls(task, folder)
        if config.docker_image:
            raise plan.refusal(f"docker_image = {config.docker_image!r}")
        if (folder / "docker-compose.yaml").exists():
            raise plan.refusal("a docker-compose.yaml")
        if not (folder / "Dockerfile").exists():
            raise plan.refusal("there is no Dockerfile")
        text = (folder / "Dockerfile").read_text()
        for line in re.sub(r"(?m)^[ \t]*#.*\n?", "", text).replace("\\\n", " ").splitlines():
            instruction, _, value = line.strip().partition(" ")
            try:
                plan._add(instruction.upper(), value.strip())
            except ValueError as error:  # unclosed quote, or missing target
                raise plan.refusal(f"{line}: {error}") from error
        plan.workdir = plan._place(config.workdir or ".", "the workdir")
        return plan

    def _add(self, instruction: str, value: str) -> None:
        if "$" in value and instruction in ("WORKDIR", "ENV", "COPY"):  # a variable
            raise self.refusal(f"{instruction} {value}")
        if instruction == "WORKDIR":
            self.workdir /= value
        elif instruction == "ENV" and "=" in value:
            pairs = (word.partition("=") for word in shlex.split(value))
            self.variables |= {name: text for name, _, text in pairs}
        elif instruction == "COPY" and not value.startswith(("-", "[")):
            self._copy(*shlex.split(value))
        elif instruction not in ("", "FROM", "LABEL"):
            raise self.refusal(f"{instruction} {value}")

    def _copy(self, *paths: str) -> None:
        *names, target = paths
        is_folder = target.endswith(("/", ".")) or len(names) > 1
        sources = [path for name in names for path in self._matches(name)]
        root = self.folder.resolve()
        if not sources or not all(path.resolve().is_relative_to(root) for path in sources):
            raise self.refusal(f"COPY {' '.join(names)}, which is not in {self.folder}")
        if any(_leads_elsewhere(path) for path in sources if path.is_dir()):
            raise self.refusal(f"COPY {' '.join(names)}, with a link that leads outside")
        self.copies.append((sources, f"{self._place(target, 'COPY')}{'/' * is_folder}"))

    def _matches(self, name: str) -> list[Path]:
        path = self.folder / name.lstrip("/")
        return [path] if path.exists() else sorted(self.folder.glob(name.lstrip("/")))

    def _place(self, path: str, what: str) -> PurePosixPath:
        """Return the absolute path; raise an error if it is in a folder the sandbox provides."""
        location = PurePosixPath(os.path.normpath(self.workdir / path))
        if any(location.is_relative_to(folder) for folder in (*system_folders(), *OWN)):
            raise self.refusal(f"{what} at {location}, which the sandbox provides")
        return location

    def refusal(self, what: str) -> Exception:
        """Return the error for a task that needs ``what``, which the sandbox cannot provide."""
        error: Exception = SandboxBuildFailedError(
            f"The task {self.task} needs an image ({what[:200]}), but bubblewrap only has this "
            "machine's programs and the files that the task copies. Run the task in a container "
            "(environment=docker or another Harbor environment), or leave it out."
        )
        return error

    def lay(self, root: Path) -> None:
        """Create the folders and copy the files into ``root``, the sandbox's root folder."""
        (root / self.workdir.relative_to("/")).mkdir(parents=True, exist_ok=True)
        for sources, target in self.copies:
            destination = root / target.lstrip("/")
            for source in sources:
                if source.is_dir():
                    shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True)
                    continue
                is_folder = target.endswith("/") or destination.is_dir()
                into = destination / source.name if is_folder else destination
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into)


def _leads_elsewhere(folder: Path) -> bool:
    """Return whether a folder has links that may lead outside. COPY could write through them."""
    links = [path for path in folder.resolve().rglob("*") if path.is_symlink()]
    return any(to.is_absolute() or ".." in to.parts for to in map(Path.readlink, links))


def check(tasks: Sequence[str]) -> None:
    """Check that these tasks can run in a sandbox on this machine.

    Raises:
        InvalidDatasetError: A task needs an image, or this machine cannot create a sandbox.
    """
    if problem := sandbox_problem():
        raise InvalidDatasetError(
            f"environment=bubblewrap: {problem}. Alternatively, use environment=docker."
        )
    for folder in tasks:
        task = read_task(folder)
        try:
            ImagePlan.of(task.name, task.paths.environment_dir, task.config.environment)
        except SandboxBuildFailedError as error:
            raise InvalidDatasetError(str(error)) from error
