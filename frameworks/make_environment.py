"""Makes the environment ``.frameworks/<name>`` for the requirement file of that name.

    python frameworks/make_environment.py openai3

The virtual environment has evert (editable, with the extra ``test-core``), the packages of
``frameworks/<name>.txt``, and the versions of ``constraints.txt``, except for packages that the
requirement file pins itself. The environments of ``ALONE`` have no evert and none of its versions.
An environment has the Python that runs this script, unless ``PYTHONS`` names another, and is remade
only when one of these files has changed. It ends with ``uv pip check``; any failure is an error.
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
"""Environment -> the version of Python that it needs, if only one works."""

ALONE = {"aider", "vllm"}
"""Environments without evert, for programs that run as commands and whose pins conflict."""

LAID = {"examples": ["instructor==1.17.0"], "tasksets": ["bfcl-eval==2026.3.23"]}
"""Packages to install without their requirements, which conflict and are not needed."""

WITHOUT = {"vllm": ["torchaudio", "torchcodec", "torchvision"]}
"""Requirements to uninstall: they are not needed, and fail to import with torch for CPUs."""


def main() -> None:
    """Make the environment that the command line names, unless it is up to date."""
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
    """Return the path of the Python for an environment; exit with an error if there is none."""
    version = PYTHONS.get(name)
    if version is None or sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    by_name = shutil.which(f"python{version}")
    for found in filter(None, [by_name, *pyenv.glob(f"versions/{version}.*/bin/python")]):
        # pyenv has a shim on the PATH for every version; it fails if its version is not selected.
        if subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    sys.exit(
        f"The environment {name} needs Python {version}, but there is no python{version} on the "
        f"PATH or under {pyenv}. Install it (pyenv install {version}), and run this again."
    )


def install(python: Path, requirements: Path, *, with_evert: bool) -> None:
    """Install the requirements, with evert or alone, and check that they are compatible."""
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
    """Return the lines of constraints.txt whose packages the requirements do not name."""
    pinned = {package(line) for line in requirements.splitlines()}
    lines = CONSTRAINTS.read_text().splitlines()
    return "\n".join(line for line in lines if package(line) not in pinned)


def package(line: str) -> str:
    """Return the normalised name of a line's package; the line itself if it names none."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line


def fingerprint_of(*files: Path) -> str:
    """Return a hash that changes with the files and with the version of Python."""
    contents = b"\0".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents + sys.version.encode()).hexdigest()


if __name__ == "__main__":
    main()
