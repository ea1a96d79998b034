"""The task for the coding agents: a folder with a bug. They can't see the check that scores it.

The check runs their code in a separate process. Otherwise, code that calls ``os._exit(0)`` would
count as a success.
"""

import sys

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "{judge}/check.py": """
import subprocess, sys
code = "from calc import add; print(add(2, 3))"
said = subprocess.run([sys.executable, "-c", code], cwd=sys.argv[1], stdout=subprocess.PIPE)
sys.exit(said.stdout != b"5\\n")
""",
}
CHECK = [sys.executable, "check.py", "{folder}"]
TASKS = ["Fix add() in calc.py.", "add(2, 3) is -1. Find the bug in calc.py."]
