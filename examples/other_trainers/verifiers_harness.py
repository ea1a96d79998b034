"""verifiers loads ``AgentHarness`` and ``AgentTaskset`` from this module, given its name."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
