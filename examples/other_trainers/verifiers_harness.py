"""verifiers imports this module by name, and finds ``AgentHarness`` and ``AgentTaskset`` in it."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
