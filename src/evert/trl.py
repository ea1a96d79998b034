"""Trains evert agents with TRL's ``GRPOTrainer``: ``rollout_func=Rollouts(agent, tasks)``."""

from evert.trainers.integrations.trl.rollouts import Rollouts

__all__ = ["Rollouts"]
