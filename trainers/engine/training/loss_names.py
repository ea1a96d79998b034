"""The names of the losses, without torch: the settings of a run read them, too."""

from typing import Literal

LossFn = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"]
"""Losses of advantages."""

LossName = Literal["cross_entropy"] | LossFn
