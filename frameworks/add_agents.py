"""Adds the public agents from examples/gallery to an environment created by make_environment.py.

    python frameworks/add_agents.py openai3

They are installed from ``frameworks/agents/<name>.txt`` without their dependencies, because the
pinned versions conflict. The packages they import are already in the environment or listed in the
same file. Examples that are only in a package's source distribution (``IN_SOURCES``) are copied
from the source distribution of the installed version. Exits with an error if anything fails.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from make_environment import fingerprint_of
from run_uv import ROOT, run, uv

AGENTS = ROOT / "frameworks" / "agents"
IN_SOURCES = {"openai3": ("openai-agents", "examples")}
"""Environment -> a package, and a folder in its source distribution to put beside the package."""


def main() -> None:
    """Add the agents to the environment given on the command line, unless it is up to date."""
    names = sorted(path.stem for path in AGENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=names)
    name = parser.parse_args().name
    requirements, environment = AGENTS / f"{name}.txt", ROOT / ".frameworks" / name
    stamp = environment / "agents-from"
    fingerprint = fingerprint_of(requirements, environment / "made-from", Path(__file__))
    if stamp.exists() and stamp.read_text() == fingerprint:
        print(f"the agents in {environment.relative_to(ROOT)} are up to date")
        return
    print(f"adding agents to {environment.relative_to(ROOT)} (a few seconds)", flush=True)
    python = environment / "bin" / "python"
    uv("pip", "install", "--python", str(python), "--no-deps", "--requirement", str(requirements))
    if name in IN_SOURCES:
        add_from_sources(python, *IN_SOURCES[name])
    stamp.write_text(fingerprint)


def add_from_sources(python: Path, package: str, folder: str) -> None:
    """Extract a folder from a package's source distribution and put it beside the package."""
    code = (
        "import importlib.metadata as m, sysconfig; "
        f"print(m.version('{package}'), sysconfig.get_path('purelib'))"
    )
    version, _, packages = (
        subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
        .stdout.strip()
        .partition(" ")
    )
    unpack(package, version, folder, Path(packages))


def unpack(package: str, version: str, folder: str, target: Path) -> None:
    """Download a package's source distribution and extract one of its folders to ``target``."""
    with tempfile.TemporaryDirectory() as download:
        what = ["--no-deps", "--no-binary", package, "--dest", download, f"{package}=={version}"]
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download", *what)
        [archive] = Path(download).iterdir()
        with tarfile.open(archive) as sources:
            for one in sources:
                inside = one.name.partition("/")[2]  # without the top-level folder
                if inside.startswith(f"{folder}/") and (content := sources.extractfile(one)):
                    path = target / inside
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())


if __name__ == "__main__":
    main()
