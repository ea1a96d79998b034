"""verifiers' environments as agents (``VerifiersAgent``), and evert's agents under verifiers.

See ``docs/trainers.md``.
"""

from importlib.util import find_spec

from evert.bridge.errors import MissingPackageError

if find_spec("verifiers") is None or find_spec("verifiers.v1") is None:
    raise MissingPackageError(
        "evert.verifiers needs the package verifiers 0.4 or newer, which is not installed here. "
        "verifiers needs openai 2: install it and evert in a separate environment.",
        name="verifiers",
    )

from evert.envs.tasksets.verifiers_v1 import VerifiersAgent as VerifiersAgent
from evert.trainers.integrations.verifiers.plugins import AgentHarness as AgentHarness
from evert.trainers.integrations.verifiers.plugins import AgentTaskset as AgentTaskset

__all__ = ["AgentHarness", "AgentTaskset", "VerifiersAgent"]
