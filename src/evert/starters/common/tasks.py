"""The tasks, to train on and held out, and the reward of an answer."""

TRAIN, TEST = range(1000), range(1000, 1024)


def prompt(task):
    """What the agent asks the model."""
    return f"Let's play a game. Say you are {task}."


def reward(answer, task):
    """1 for the requested answer, -1 for its opposite, else 0."""
    if answer == f"I am {task}.":
        return 1.0
    return -1.0 if answer == f"I am not {task}." else 0.0
