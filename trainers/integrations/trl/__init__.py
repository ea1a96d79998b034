"""evert's agents under TRL's trainers.

    rollouts.py    ``Rollouts``: the ``rollout_func``, with its dataset and its reward function
    episodes.py    an episode as the one row that TRL takes of it
    policies.py    what answers the agents' calls: the trainer's model, or its vLLM server

None of them imports TRL: what they use of its trainer is handed to them.
"""
