"""Train evert agents with TRL.

    rollouts.py    ``Rollouts``: provides the ``rollout_func``, the dataset and the reward function
    episodes.py    converts an episode to one row of token ids, mask, log-probabilities and reward
    policies.py    samples replies from the trainer's model or from its vLLM server

These modules do not import TRL, because they receive the trainer as an argument.
"""
