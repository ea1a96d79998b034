"""verifiers loads ``AgentHarness`` and ``AgentTaskset`` from this module by the module's name."""

from evert.verifiers import AgentHarness, AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset"]
