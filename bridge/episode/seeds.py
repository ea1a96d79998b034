"""Seeds of episodes, which do not depend on where or when an episode is played.

``client.seed`` seeds the agent's random generator, ``client.rng``. A dataset derives each episode's
seed from the dataset's seed, the step, the task and the episode's number in its group. So the
episodes of a group have different seeds, and a resumed run has the same seeds as before.
"""

import hashlib
import secrets


def seed_of(*parts: object) -> int:
    """Return a seed derived from the text of ``parts``: from 0 to 2**32 - 1, as NumPy requires."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


def random_seed() -> int:
    """Return a random seed in the same range as ``seed_of``."""
    return secrets.randbits(32)
