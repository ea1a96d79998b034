"""Makes ``.frameworks/programs``: agents in other languages, from npm (``package.json`` here).

    python frameworks/make_programs.py

Node.js 20 or newer and its npm must be installed. The folder is remade only when ``package.json``
has changed. Any failure ends this with an error.
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
            "npm was not found, but agents in other languages are tested with Node.js. Install "
            "Node.js 20 or newer, and run this again."
        )
    print(f"making {FOLDER.relative_to(ROOT)}: a few seconds", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shutil.copy(MANIFEST, FOLDER)
    run(npm, "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--no-package-lock")
    stamp.write_text(fingerprint)


if __name__ == "__main__":
    main()
