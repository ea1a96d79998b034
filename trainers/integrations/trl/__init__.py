"""evert's agents under TRL's trainers.

    rollouts.py    ``Rollouts``: the ``rollout_func``, with its dataset and its reward function
    episodes.py    converts an episode to one row of token ids, mask, log-probabilities, reward
    policies.py    the completer for the agents' calls: the trainer's model, or its vLLM server

These modules do not import TRL; they get its trainer as an argument.
"""
