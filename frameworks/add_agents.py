"""Adds the public agents of examples/gallery to an environment that make_environment.py made.

    python frameworks/add_agents.py openai3

They are installed from ``frameworks/agents/<name>.txt`` without their requirements, whose pins
conflict; the packages that they import are in the environment or in the same file. Examples that
are only in a package's sources (``IN_SOURCES``) are taken from the sources of the installed
version. Any failure ends this with an error.
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
"""Environment -> a package, and the folder of its sources that is installed beside it."""


def main() -> None:
    """Add the agents to the environment that the command line names, unless it has them."""
    names = sorted(path.stem for path in AGENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=names)
    name = parser.parse_args().name
    requirements, environment = AGENTS / f"{name}.txt", ROOT / ".frameworks" / name
    stamp = environment / "agents-from"
    fingerprint = fingerprint_of(requirements, environment / "made-from", Path(__file__))
    if stamp.exists() and stamp.read_text() == fingerprint:
        print(f"the agents of {environment.relative_to(ROOT)} are up to date")
        return
    print(f"adding agents to {environment.relative_to(ROOT)}: a few seconds", flush=True)
    python = environment / "bin" / "python"
    uv("pip", "install", "--python", str(python), "--no-deps", "--requirement", str(requirements))
    if name in IN_SOURCES:
        add_from_sources(python, *IN_SOURCES[name])
    stamp.write_text(fingerprint)


def add_from_sources(python: Path, package: str, folder: str) -> None:
    """Unpack a folder of a package's sources beside the installed package."""
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
    """Unpack a folder of a version's sources into ``target``, under the folder's name."""
    with tempfile.TemporaryDirectory() as download:
        what = ["--no-deps", "--no-binary", package, "--dest", download, f"{package}=={version}"]
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download", *what)
        [archive] = Path(download).iterdir()
        with tarfile.open(archive) as sources:
            for one in sources:
                inside = one.name.partition("/")[2]  # without the folder named after the version
                if inside.startswith(f"{folder}/") and (content := sources.extractfile(one)):
                    path = target / inside
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())


if __name__ == "__main__":
    main()
