"""What the coding agents are to mend: a folder with a bug, and a check that fails."""

import sys

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "check.py": "from calc import add\nassert add(2, 3) == 5\n",
}
CHECK = [sys.executable, "check.py"]
TASKS = ["Mend add() in calc.py.", "check.py fails. Find the bug in calc.py."]
