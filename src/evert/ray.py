"""Groups of episodes on Ray workers: ``pip install 'evert[ray]'``, ``RayRollouts(workers=8)``."""

from evert.trainers.workers.actors import RayRollouts

__all__ = ["RayRollouts"]
