"""Frozen models besides the policy.

In reading order:

    remote.py           models behind endpoints
    older_servers.py    support for your own older Tinker servers
    sampling_ranges.py  the valid values of temperature, top_p and other sampling parameters
    tinker_model.py     weights, sampled by the engine in use
    frozen.py           the calls to all frozen models, by name
"""
