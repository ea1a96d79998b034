"""Creates ``.frameworks/programs`` with agents in other languages, using npm.

    python frameworks/make_programs.py

The packages are listed in ``package.json``. Requires Node.js 20 or newer with npm. The folder is
only recreated if ``package.json`` has changed. Exits with an error if anything fails.
"""

import shutil
import sys

from make_environment import fingerprint_of
from run_uv import ROOT, run

MANIFEST = ROOT / "frameworks" / "package.json"
FOLDER = ROOT / ".frameworks" / "programs"


def main() -> None:
    """Install the programs, unless they are up to date."""
    stamp = FOLDER / "made-from"
    fingerprint = fingerprint_of(MANIFEST)
    if stamp.exists() and stamp.read_text() == fingerprint:
        print(f"{FOLDER.relative_to(ROOT)} is up to date")
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(
            "npm was not found. The tests of agents in other languages require Node.js. Install "
            "Node.js 20 or newer and run this again."
        )
    print(f"creating {FOLDER.relative_to(ROOT)} (a few seconds)", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shutil.copy(MANIFEST, FOLDER)
    run(npm, "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--no-package-lock")
    stamp.write_text(fingerprint)


if __name__ == "__main__":
    main()
