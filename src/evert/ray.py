"""Runs groups of episodes on Ray workers: ``RayRollouts(workers=8)``. Needs the ``ray`` extra."""

from evert.trainers.workers.actors import RayRollouts

__all__ = ["RayRollouts"]
