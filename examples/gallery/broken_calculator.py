"""What the coding agents are to fix: a folder with a bug. The check is the judge's alone.

It runs their code in a process of its own: within it, ``os._exit(0)`` would be a success.
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
