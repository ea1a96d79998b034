"""Episode seeds, which do not depend on where or when an episode is played.

``client.seed`` seeds the agent's random number generator, ``client.rng``. A dataset derives the
seed of each episode from its own seed, the step, the task and the episode's index in its group. So
the episodes in a group get different seeds, and a resumed run uses the same seeds as the original.
"""

import hashlib
import secrets


def seed_of(*parts: object) -> int:
    """Derive a seed from the text of ``parts``. It is at most 2**32 - 1, as NumPy requires."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


def random_seed() -> int:
    """Return a random seed in the same range as ``seed_of``."""
    return secrets.randbits(32)
