"""evert's agents as environments of verifiers.

``evert.verifiers`` has the public names, and those of the other direction, verifiers' environments
as agents (``envs/tasksets/verifiers.py``).

    plugins.py           ``AgentTaskset``, ``AgentHarness``: tasks and an agent, for verifiers
    answered_outside.py  plays an agent whose calls another framework answers
"""
