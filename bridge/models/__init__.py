"""Frozen models, which agents can call in addition to the policy.

In reading order:

    remote.py           models behind an OpenAI-compatible endpoint
    older_servers.py    support for self-hosted Tinker servers that are older than the SDK
    sampling_ranges.py  the valid ranges of temperature, top_p and other sampling parameters
    tinker_model.py     weights that are sampled with the current engine
    frozen.py           answers the agent's calls to frozen models
"""
