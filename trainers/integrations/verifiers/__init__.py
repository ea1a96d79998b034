"""verifiers' environments as evert's agents, and evert's agents as verifiers' environments.

``evert.verifiers`` has the public names.

    agent.py             ``VerifiersAgent``: an environment of verifiers as an agent
    plugins.py           ``AgentTaskset``, ``AgentHarness``: tasks and an agent, for verifiers
    answered_outside.py  plays an agent whose calls another framework answers
"""
