"""evert's agents under TRL's trainers.

    rollouts.py    ``Rollouts``: the ``rollout_func``, with its dataset and its reward function
    episodes.py    an episode as one row of token ids, mask, log-probabilities and reward
    policies.py    the completer for the agents' calls: the trainer's model, or its vLLM server

They do not import TRL: they get its trainer as an argument.
"""
