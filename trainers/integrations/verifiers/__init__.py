"""verifiers, both ways: its environments as agents, and agents as its environments.

The public face is ``evert.verifiers``.

    agent.py             ``VerifiersAgent``: an environment of verifiers' as an agent
    plugins.py           ``AgentTaskset``, ``AgentHarness``: tasks and an agent, as verifiers plays them
    answered_outside.py  ?
"""
