"""Seeds of episodes, which are the same wherever and whenever an episode is played.

The agent's random generator, ``client.rng``, begins with ``client.seed``. A dataset derives this
seed from its own seed, the step, the task and the episode's number in its group. So the episodes of
a group differ, and a resumed run has the same seeds.
"""

import hashlib
import random
import secrets
from functools import cached_property


def seed_of(*parts: object) -> int:
    """Return a seed derived from the text of ``parts``: from 0 to 2**32 - 1, as NumPy requires."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


class Draws:
    """The seed and random generator of one episode; all of the agent's clients share them.

    Args:
        seed: The Env's; None: a random one.

    Attributes:
        seed: At least 0 and below 2**32 if it was random or made by ``seed_of``.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed

    @cached_property
    def rng(self) -> random.Random:
        """The random generator, seeded with ``seed``."""
        return random.Random(self.seed)
