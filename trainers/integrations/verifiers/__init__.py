"""verifiers, both ways: its environments as agents, and agents as its environments.

The public face is ``evert.verifiers``.

    agent.py             ``VerifiersAgent``: an environment of verifiers' as an agent
    plugins.py           ``AgentTaskset``, ``AgentHarness``: tasks and an agent, for verifiers
    answered_outside.py  an agent whose calls somebody else answers
"""
