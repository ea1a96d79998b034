"""verifiers finds ``AgentHarness`` and ``AgentTaskset`` by the name of this module."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
