"""``evert doctor``: show what is installed, what is missing, and what evert would use here."""

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version

import chz

import evert
from evert.trainers.config.backend import KEY, URL
from evert.trainers.config.command import Command

TESTED = {
    "torch": "2.13.0",
    "tinker": "0.38.0",
    "tinker-cookbook": "0.6.1",
    "transformers": "5.5.4",
    "gymnasium": "1.4.0",
    "openai": "3.57.0",
    "peft": "0.21.2",
}
"""For each of the main packages, the latest version that evert was tested with."""

SYSTEMS = {
    "linux": "",
    "darwin": "only tested in simulation; please report problems",
    "win32": "only tested in simulation; no command agents, evert sweep or rollouts=pool",
}
"""Note to print for each operating system."""

USAGE = """\
Usage: evert doctor

Shows which packages are installed, missing, or newer than the versions evert was tested with, and
which device, sandbox and engine evert would use. It changes nothing and works offline.
"""


@chz.chz
class DoctorSettings:
    """This command has no settings."""


def examine(settings: DoctorSettings) -> None:
    """Print the report."""
    for name, value, note in [*_machine(), *_packages(), *_extras(), *_choices()]:
        print(f"{name:<16} {value}{f'  ({note})' if note else ''}")


def _machine() -> Iterator[tuple[str, str, str]]:
    yield "evert", evert.__version__, os.path.dirname(evert.__file__)
    yield "python", platform.python_version(), sys.executable
    yield "system", platform.platform(terse=True), SYSTEMS.get(sys.platform, "not tested")


def _packages() -> Iterator[tuple[str, str, str]]:
    for name, tested in TESTED.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield name, "missing", f"pip install {name}"
            continue
        is_newer = _numbers(installed) > _numbers(tested)
        note = f"newer than {tested}, the latest tested version" if is_newer else ""
        yield name, installed, note


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3]]


def _extras() -> Iterator[tuple[str, str, str]]:
    about = distribution("evert")
    packages: dict[str, list[str]] = {}
    for line in about.requires or ():
        package, _, extra = line.partition("; extra == ")
        if extra and not extra.strip("\"'").startswith(("test", "lint", "docs")):
            name = re.split(r"[\s<>=!~\[;]", package)[0]
            packages.setdefault(extra.strip("\"'"), []).append(name)
    missing = [extra for extra, names in packages.items() if not all(map(_is_here, names))]
    yield "extras", ", ".join(sorted({*packages} - {*missing})) or "none", ""
    yield "not installed", ", ".join(sorted(missing)) or "none", "pip install 'evert[NAME]'"


def _is_here(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _choices() -> Iterator[tuple[str, str, str]]:
    import torch

    from evert.agents.sandbox import sandbox_problem
    from evert.trainers.engine.models.loading import device_kinds

    device = device_kinds()[0]
    names: dict[str, Callable[[], str]] = {
        "cuda": torch.cuda.get_device_name,
        "mps": lambda: "Apple GPU; tested with a simulated device, not on real hardware",
        "cpu": lambda: f"{os.cpu_count()} cores",
    }
    yield "device=auto", device, names[device]()
    problem = sandbox_problem()
    yield "sandbox", "bubblewrap" if problem is None else "none", problem or ""
    service = os.environ.get(URL, "the hosted service") if os.environ.get(KEY) else "embedded"
    yield "engine=auto", service, "" if os.environ.get(KEY) else f"{KEY} is not set"


COMMAND = Command(DoctorSettings, USAGE, examine, "")
main, parse = COMMAND.main, COMMAND.parse
