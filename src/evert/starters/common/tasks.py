"""The training tasks, the held-out tasks, and the reward function."""

TRAIN, TEST = range(1000), range(1000, 1024)


def prompt(task):
    """Return the prompt for a task."""
    return f"Let's play a game. Say you are {task}."


def reward(answer, task):
    """Return 1 for the requested answer, -1 for its opposite, and 0 for anything else."""
    if answer == f"I am {task}.":
        return 1.0
    return -1.0 if answer == f"I am not {task}." else 0.0
