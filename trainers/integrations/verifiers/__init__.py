"""Use evert agents as verifiers environments.

The public API is in ``evert.verifiers``, which also contains the reverse direction: verifiers
environments as agents (``envs/tasksets/verifiers.py``).

    plugins.py           ``AgentTaskset``, ``AgentHarness``: an agent and its tasks, for verifiers
    answered_outside.py  run an agent while another framework answers its calls
"""
