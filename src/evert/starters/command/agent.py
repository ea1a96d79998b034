"""An agent that is a command, in any language. It finds the model in its environment variables."""

import sys
from pathlib import Path

from tasks import reward

import evert


def score(result, task):
    """Return the reward of what the command printed."""
    return reward(result.stdout.strip(), task)


agent = evert.ProcessAgent(
    [sys.executable, "program.py"],
    files={
        "program.py": Path(__file__).with_name("program.py"),
    },
    reward=score,
)
