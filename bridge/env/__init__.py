"""An agent as an Env.

In reading order:

    options.py         the options of an Env, and their defaults
    limits.py          the Cookbook's limits, with the agent's max_tokens
    pending.py         an observation that waits for its action
    endings.py         how an episode ends: the last transition and its report
    tool_counts.py     counts of tool calls, and log entries on callers, lineages and drift
    reply_policies.py  replies that do not parse, have a wrong format, or call too many tools
    policy_queue.py    a policy that samples before the runner asks it to
    open_calls.py      calls that overlap with other calls
    turns.py           from an action to the next prompt
    transcript.py      the agent's requests, kept for the record
    env.py             ChatAgentEnv: the Env, made of the parts above
    seats.py           agents with several trained roles
    parallel.py        groups whose agents' concurrent calls are sampled concurrently
    scripted.py        a policy with replies from a list
    check.py           check_env
"""
