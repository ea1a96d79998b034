"""An agent that runs a command, written in any language.

Environment variables tell the command how to call the model.
"""

import sys
from pathlib import Path

from tasks import reward

import evert


def score(result, task):
    """Return the reward for the command's output."""
    return reward(result.stdout.strip(), task)


agent = evert.ProcessAgent(
    [sys.executable, "program.py"],
    files={
        "program.py": Path(__file__).with_name("program.py"),
    },
    reward=score,
)
