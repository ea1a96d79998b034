"""Makes the environment ``.frameworks/<name>`` for the requirement file of that name.

    python frameworks/make_environment.py openai3

A virtual environment with evert (editable, with what tests of agents need), the agent frameworks of
``frameworks/<name>.txt``, and the versions of ``constraints.txt``, but for packages that the
requirement file pins itself; some do without evert and its versions. It is made with the Python
that runs this, unless its frameworks need another, and made anew only when one of these files has
changed. Ends with ``uv pip check``; whatever fails ends it with an error.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_uv import ROOT, uv

CONSTRAINTS = ROOT / "constraints.txt"

PYTHONS = {"harbor": "3.12", "tau2": "3.12"}
"""Environment -> the Python that its frameworks need, where not any will do."""

ALONE = {"aider", "vllm"}
"""Environments without evert: of programs that run as commands, whose pins conflict with its."""

LAID = {"tasksets": ["bfcl-eval==2026.3.23"]}
"""What is laid into an environment without its requirements, which conflict and are not needed."""

WITHOUT = {"vllm": ["torchaudio", "torchcodec", "torchvision"]}
"""What frameworks ask for and do not need; beside a build of torch for CPUs these do not import."""


def main() -> None:
    """Make the environment named on the command line, unless it is there."""
    names = sorted(path.stem for path in (ROOT / "frameworks").glob("*.txt"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=names)
    name = parser.parse_args().name
    requirements = ROOT / "frameworks" / f"{name}.txt"
    environment = ROOT / ".frameworks" / name
    stamp = environment / "made-from"
    evert = [] if name in ALONE else [CONSTRAINTS, ROOT / "pyproject.toml"]
    fingerprint = fingerprint_of(requirements, *evert)
    if stamp.exists() and stamp.read_text() == fingerprint:
        print(f"{environment.relative_to(ROOT)} is up to date")
        return
    print(f"making {environment.relative_to(ROOT)}", flush=True)
    started = time.monotonic()
    uv("venv", "--clear", "--python", python_for(name), str(environment))
    python = environment / "bin" / "python"
    install(python, requirements, with_evert=name not in ALONE)
    if name in LAID:
        uv("pip", "install", "--no-deps", "--python", str(python), *LAID[name])
    if name in WITHOUT:
        uv("pip", "uninstall", "--python", str(python), *WITHOUT[name])
    stamp.write_text(fingerprint)
    print(f"made {environment.relative_to(ROOT)} in {time.monotonic() - started:.0f} s")


def python_for(name: str) -> str:
    """The Python to make an environment with; ends with an error where there is none."""
    version = PYTHONS.get(name)
    if version is None or sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    by_name = shutil.which(f"python{version}")
    for found in filter(None, [by_name, *pyenv.glob(f"versions/{version}.*/bin/python")]):
        # pyenv puts a stand-in on the PATH for every version that it has, chosen or not.
        if subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    sys.exit(
        f"The environment {name} needs Python {version}, and there is no python{version} on the "
        f"PATH, nor under {pyenv}. Install it (pyenv install {version}), and run this again."
    )


def install(python: Path, requirements: Path, *, with_evert: bool) -> None:
    """Install the frameworks, beside evert or alone, and check that they fit together."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        beside = constraints_beside(requirements.read_text()) if with_evert else ""
        constraints.write_text(beside)
        what = ["--constraint", str(constraints), "--requirement", str(requirements)]
        if with_evert:
            what += ["--editable", f"{ROOT}[test-core]"]
        print(f"installing {requirements.name}: a minute or less", flush=True)
        uv("pip", "install", "--python", str(python), *what)
    uv("pip", "check", "--python", str(python))


def constraints_beside(requirements: str) -> str:
    """The lines of constraints.txt on packages that the requirements do not pin themselves."""
    pinned = {package(line) for line in requirements.splitlines()}
    lines = CONSTRAINTS.read_text().splitlines()
    return "\n".join(line for line in lines if package(line) not in pinned)


def package(line: str) -> str:
    """Normalised name of the package that a line is about; the line itself if about none."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line


def fingerprint_of(*files: Path) -> str:
    """Changes whenever one of the files, or Python, does."""
    contents = b"\0".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents + sys.version.encode()).hexdigest()


if __name__ == "__main__":
    main()
