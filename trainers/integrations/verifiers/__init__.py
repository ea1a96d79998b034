"""evert's agents as environments of verifiers.

``evert.verifiers`` has the public names, including those for the reverse direction: verifiers'
environments as agents (``envs/tasksets/verifiers.py``).

    plugins.py           ``AgentTaskset``, ``AgentHarness``: an agent and its tasks, for verifiers
    answered_outside.py  plays an agent and has another framework answer its calls
"""
