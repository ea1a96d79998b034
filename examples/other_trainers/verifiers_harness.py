"""The module in which verifiers finds an agent and its tasks, by this name."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
