"""Runs uv with pip's configuration; uv takes a fifth of pip's time.

    python frameworks/run_uv.py pip install --editable .

Like pip, it takes the best match of all indexes; uv's default is the first index with a match.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""Setting of pip -> the same setting as an environment variable of uv."""


def uv(*arguments: str) -> None:
    """Run uv with pip's indexes, local wheels and certificates."""
    beside = Path(sys.executable).parent / "uv"
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        sys.exit(
            f"uv was not found. Install it and run this again: {sys.executable} -m pip install uv"
        )
    run(program, "--quiet", *arguments, UV_INDEX_STRATEGY="unsafe-best-match", **from_pip())


def from_pip() -> dict[str, str]:
    """Return variables for uv from pip's configuration. Pip's variables override its files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(
        r"^(?:global|user|site|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE
    )
    return {PIP_TO_UV[key]: value for key, value in reversed(found) if key in PIP_TO_UV}


def run(*command: str, **variables: str) -> None:
    """Run a command with further variables; if it fails, exit with its code."""
    # The caller may have set a PYTHONPATH.
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    code = subprocess.run(command, cwd=ROOT, env={**variables, **own}, check=False).returncode
    if code != 0:
        print(f"failed with code {code}: {' '.join(command)}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    uv(*sys.argv[1:])
