"""Builds the sdist and the wheel into ``dist/`` and checks that users can install them.

    python frameworks/check_packages.py

The packages are built from a copy of all files that git does not ignore. The script checks
the description, the files in the wheel, and four ways to install evert:

- the wheel and its dependencies, in an empty environment;
- from git, with pip and with ``uvx``;
- editable, with a script next to the checkout;
- from a clone without symbolic links.

The first check and ``uvx`` install the dependencies. The other checks use the dependencies in
``.venv``.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

from run_uv import ROOT, uv

DIST = ROOT / "dist"
CHECKS = ROOT / "build" / "checks"
"""Folder for the checks' checkouts and environments."""
MAPPED = {"src/evert/": "evert/"} | {f"{n}/": f"evert/{n}/" for n in ("bridge", "envs", "trainers")}
"""Folder in the checkout -> folder in the wheel."""
EPISODE = ["evaluate", "env=identity", "models=evert-tiny", "max_tasks=1", "seeds=1", "out=played"]
IMPORTS = "import evert.bridge, evert.envs, evert.trainers.cli; print(evert.__version__)"


def main() -> None:
    """Build the packages and run all checks, exiting at the first failure."""
    for folder in (DIST, CHECKS):
        shutil.rmtree(folder, ignore_errors=True)
    CHECKS.mkdir(parents=True)
    checkout = checkout_of_this_tree()
    uv("build", str(checkout), "--out-dir", str(DIST))
    packages = [str(path) for path in DIST.glob("evert-*")]
    uv("tool", "run", "twine@6.2.0", "check", "--strict", *packages)
    [wheel] = DIST.glob("*.whl")
    check_files(wheel, checkout)
    check_empty(wheel)
    check_git(checkout)
    check_editable(checkout)
    check_unlinked(wheel, checkout)


def check_files(wheel: Path, checkout: Path) -> None:
    """Check that the wheel contains exactly the package's files that are tracked by git."""
    listed = run("git", "ls-files", *MAPPED, cwd=checkout).splitlines()
    links = {path for path in listed if (checkout / path).is_symlink()}
    tracked = {
        path.replace(folder, home, 1)
        for path in {*listed} - links
        for folder, home in MAPPED.items()
        if path.startswith(folder)
    }
    inside = {name for name in crcs(wheel) if ".dist-info/" not in name}
    differing = inside ^ tracked
    if differing:
        sys.exit(f"The files in the wheel differ from those in git: {sorted(differing)}")


def check_empty(wheel: Path) -> None:
    """Check the command, the version and an episode after installing into an empty environment."""
    uv("venv", str(CHECKS / "empty"))
    python = str(CHECKS / "empty/bin/python")
    uv("pip", "install", "--python", python, "--constraint", "constraints.txt", str(wheel))
    run("empty/bin/evert", "--help")
    run("empty/bin/evert", *EPISODE)
    version = wheel.name.split("-")[1]
    assert run(python, "-m", "evert", "--version") == f"evert {version}\n"


def check_git(checkout: Path) -> None:
    """Check installing with ``pip install git+...`` and ``uvx --from``."""
    address = f"git+file://{checkout}"
    python = environment("git")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", address)
    run("git/bin/evert", "--help")
    constraints = ["--constraints", str(ROOT / "constraints.txt")]
    uv("tool", "run", *constraints, "--from", f"evert @ {address}", "evert", "--version")


def check_editable(checkout: Path) -> None:
    """Check that an ``evert`` checkout next to a script does not shadow the package."""
    python = environment("editable")
    uv("pip", "install", "--python", python, "--no-deps", "--editable", str(checkout))
    (CHECKS / "script.py").write_text(IMPORTS)
    run(python, "script.py")


def check_unlinked(wheel: Path, checkout: Path) -> None:
    """Check that a clone without symbolic links builds the same wheel and works in place."""
    clone = CHECKS / "unlinked"
    run("git", "clone", "--quiet", "-c", "core.symlinks=false", str(checkout), str(clone))
    assert not (clone / "src/evert/bridge").is_symlink()
    uv("build", "--wheel", str(clone), "--out-dir", str(CHECKS))
    [other] = CHECKS.glob("*.whl")
    differing = crcs(other).items() ^ crcs(wheel).items()
    if differing:
        sys.exit(f"A checkout without symlinks builds a different wheel: {sorted(differing)}")
    python = environment("from_unlinked")
    uv("pip", "install", "--python", python, "--no-deps", "--editable", str(clone))
    run(python, "-c", IMPORTS, cwd=clone)


def checkout_of_this_tree() -> Path:
    """Create a repository whose single commit contains all files that git does not ignore."""
    checkout = CHECKS / "evert"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(os.path.lexists, listed.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    run("git", "init", "--quiet", cwd=checkout)
    run("git", "add", "--all", "--force", cwd=checkout)
    author = ["-c", "user.name=evert", "-c", "user.email=evert@localhost"]
    run("git", *author, "commit", "--quiet", "--no-gpg-sign", "-m", "This tree", cwd=checkout)
    return checkout


def environment(name: str) -> str:
    """Create an environment that sees this Python's packages; return the path of its Python."""
    uv("venv", str(CHECKS / name))
    [packages] = (CHECKS / name).glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    return str(CHECKS / name / "bin/python")


def crcs(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file in the wheel."""
    return {file.filename: file.CRC for file in ZipFile(wheel).infolist()}


def run(*command: str, cwd: Path = CHECKS) -> str:
    """Run a command and return its stdout."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=plain, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(command)}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
