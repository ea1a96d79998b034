"""The names of the losses, without torch: a run's settings read them as well."""

from typing import Literal

LossFn = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"]
"""Losses of advantages."""

LossName = Literal["cross_entropy"] | LossFn
