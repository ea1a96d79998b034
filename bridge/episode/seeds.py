"""Seeds of episodes: a number from what an episode is, the same wherever and whenever it is played.

An agent draws from ``client.rng``, which begins with ``client.seed``. A dataset makes that seed of
its own seed, the step, the task and the number of the episode in its group: so the members of a
group differ, and a run that is resumed goes on as it would have gone.
"""

import hashlib
import random
import secrets
from functools import cached_property


def seed_of(*parts: object) -> int:
    """A seed for what ``parts`` say, in words: at least 0 and below 2**32, as NumPy's must be."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


class Draws:
    """What the agent of one episode draws from, whichever of its clients is asked.

    Args:
        seed: As an Env was given it; None: one that nobody knows.

    Attributes:
        seed: At least 0 and below 2**32, if it was drawn here or made by ``seed_of``.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed

    @cached_property
    def rng(self) -> random.Random:
        """A generator that begins with the seed."""
        return random.Random(self.seed)
