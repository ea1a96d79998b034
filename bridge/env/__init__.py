"""Wraps a chat agent as a Cookbook Env.

In reading order:

    options.py         Env options and their defaults
    limits.py          the Cookbook's limits, combined with the agent's max_tokens
    pending.py         an observation that is waiting for its action
    endings.py         how episodes end: the last transition and its metrics
    tool_counts.py     tool call counts, and log entries about callers, lineages and drift
    reply_policies.py  handles parse errors, format errors and tool call limits
    policy_queue.py    a policy that starts sampling before the runner asks for it
    open_calls.py      handles overlapping calls
    turns.py           turns an action into the next prompt
    transcript.py      keeps the agent's requests for recording
    env.py             ChatAgentEnv, which combines all of the above
    seats.py           agents with several trained roles
    parallel.py        rollouts that sample an agent's overlapping calls in parallel
    scripted.py        a policy with predefined replies
    check.py           check_env
"""
