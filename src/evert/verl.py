"""Trains evert agents with verl: an agent loop and its dataset (see ``docs/trainers.md``)."""

from evert.trainers.integrations.verl.agent_loop import EvertAgentLoop as EvertAgentLoop
from evert.trainers.integrations.verl.dataset import write_dataset as write_dataset

__all__ = ["EvertAgentLoop", "write_dataset"]
