"""Creates the virtual environment ``.frameworks/<name>`` from a requirements file.

    python frameworks/make_environment.py openai3

The environment contains evert (editable, with the ``test-core`` extra) and the packages in
``frameworks/<name>.txt``. Versions come from ``constraints.txt``, except for packages that the
requirements file pins itself. Environments in ``ALONE`` don't contain evert and ignore the
constraints. An environment uses the Python that runs this script, unless ``PYTHONS`` specifies a
different version. It is only recreated if one of these files has changed. Finally, ``uv pip
check`` runs. Exits with an error if anything fails.
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
"""Environment -> the only Python version that works."""

ALONE = {"aider", "vllm"}
"""Environments without evert, for programs that run as commands and whose pins conflict."""

LAID = {"examples": ["instructor==1.17.0"], "tasksets": ["bfcl-eval==2026.3.23"]}
"""Packages to install without their dependencies, which conflict and are not needed."""

WITHOUT = {"vllm": ["torchaudio", "torchcodec", "torchvision"]}
"""Dependencies to uninstall, because they are not needed and fail to import with CPU torch."""


def main() -> None:
    """Create the environment given on the command line, unless it is up to date."""
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
    print(f"creating {environment.relative_to(ROOT)}", flush=True)
    started = time.monotonic()
    uv("venv", "--clear", "--python", python_for(name), str(environment))
    python = environment / "bin" / "python"
    install(python, requirements, with_evert=name not in ALONE)
    if name in LAID:
        uv("pip", "install", "--no-deps", "--python", str(python), *LAID[name])
    if name in WITHOUT:
        uv("pip", "uninstall", "--python", str(python), *WITHOUT[name])
    stamp.write_text(fingerprint)
    print(f"created {environment.relative_to(ROOT)} in {time.monotonic() - started:.0f} s")


def python_for(name: str) -> str:
    """Return the path of the Python for an environment; exit with an error if it is missing."""
    version = PYTHONS.get(name)
    if version is None or sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    by_name = shutil.which(f"python{version}")
    for found in filter(None, [by_name, *pyenv.glob(f"versions/{version}.*/bin/python")]):
        # pyenv puts a shim on the PATH for every version. A shim fails unless its version is
        # selected.
        if subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    sys.exit(
        f"The {name} environment requires Python {version}, but there is no python{version} on the "
        f"PATH or under {pyenv}. Install it (pyenv install {version}) and run this again."
    )


def install(python: Path, requirements: Path, *, with_evert: bool) -> None:
    """Install the requirements, optionally with evert, and check that they are compatible."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        beside = constraints_beside(requirements.read_text()) if with_evert else ""
        constraints.write_text(beside)
        what = ["--constraint", str(constraints), "--requirement", str(requirements)]
        if with_evert:
            what += ["--editable", f"{ROOT}[test-core]"]
        print(f"installing {requirements.name} (up to a minute)", flush=True)
        uv("pip", "install", "--python", str(python), *what)
    uv("pip", "check", "--python", str(python))


def constraints_beside(requirements: str) -> str:
    """Return the lines of constraints.txt for packages that are not in the requirements."""
    pinned = {package(line) for line in requirements.splitlines()}
    lines = CONSTRAINTS.read_text().splitlines()
    return "\n".join(line for line in lines if package(line) not in pinned)


def package(line: str) -> str:
    """Return the normalised package name in a line, or the line itself if there is none."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line


def fingerprint_of(*files: Path) -> str:
    """Return a hash of the files' contents and the Python version."""
    contents = b"\0".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents + sys.version.encode()).hexdigest()


if __name__ == "__main__":
    main()
