"""What pyproject.toml cannot say: where the packages lie, and the README for a package index.

In a checkout all packages lie below ``src``, three of them by links. So an editable install is one
path, which type checkers read, and which no folder named ``evert`` beside a script can hide. In a
checkout without links (git's default on Windows) the three packages are mapped to their folders.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = PYPROJECT["project"]["urls"]["Repository"]
INIT = (ROOT / "src/evert/__init__.py").read_text(encoding="utf-8")
[VERSION] = re.findall(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)
LINKS = ("bridge", "envs", "trainers")
RELATIVE = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def package_dir() -> dict[str, str]:
    """Where each package lies; one that is not named lies below the package above it."""
    unlinked = [name for name in LINKS if not (ROOT / "src/evert" / name).is_dir()]
    return {"": "src"} | {f"evert.{name}": name for name in unlinked}


def absolute(link: re.Match[str]) -> str:
    """A link of the README, to the repository's file at this version."""
    kind = "raw" if link[1].endswith((".png", ".svg")) else "blob"
    return f"]({REPOSITORY}/{kind}/v{VERSION}/{link[1]})"


setup(
    package_dir=package_dir(),
    long_description=RELATIVE.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
