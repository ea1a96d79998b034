"""verifiers environments as evert agents (``VerifiersAgent``), and evert agents in verifiers.

See ``docs/trainers.md``.
"""

from importlib.util import find_spec

from evert.bridge.errors import MissingPackageError

if find_spec("verifiers") is None or find_spec("verifiers.v1") is None:
    raise MissingPackageError(
        "evert.verifiers needs the verifiers package (0.4 or newer), which is not installed. It "
        "requires openai 2, so install it together with evert in a separate environment.",
        name="verifiers",
    )

from evert.envs.tasksets.verifiers_v1 import VerifiersAgent as VerifiersAgent
from evert.trainers.integrations.verifiers.plugins import AgentHarness as AgentHarness
from evert.trainers.integrations.verifiers.plugins import AgentTaskset as AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset", "VerifiersAgent"]
