"""Frozen models besides the policy.

In reading order:

    remote.py           models behind endpoints
    older_servers.py    support for self-hosted Tinker servers that are older than the SDK
    sampling_ranges.py  the valid values of temperature, top_p and other sampling parameters
    tinker_model.py     weights, sampled by the engine in use
    frozen.py           answers the agent's calls to frozen models
"""
