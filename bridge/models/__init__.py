"""Frozen models beside the policy.

In reading order:

    remote.py           models behind endpoints
    older_servers.py    what the SDK wants of older Tinker servers of one's own
    sampling_ranges.py  what temperature, top_p and the like may be
    tinker_model.py     one of them: weights of the engine in use
    frozen.py           the models beside the policy, by name
"""
