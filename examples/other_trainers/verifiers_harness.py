"""The module by whose name verifiers finds ``AgentHarness`` and ``AgentTaskset``."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
