"""Chat agent -> Env. Knows the Cookbook's types; knows no game and no trainer.

Read in this order:

    agent.py         what an agent is, and what it may return
    requests.py      a model call: which fields count, the 400s
    messages.py      messages and replies, ours and the Cookbook's
    completions.py   a reply as OpenAI's ChatCompletion
    client.py        the handle an agent calls
    switch.py        parking calls, resuming agents
    rendering.py     what is needed of a Cookbook renderer
    tokens.py        a growing token sequence
    conversation.py  one conversation, in messages and in exact tokens
    lineage.py       which conversation a call continues; drift
    actions.py       what sampled tokens say, and what if they do not parse
    limits.py        the Cookbook's limits, with the agent's own max_tokens
    endings.py       the last transition of an episode
    env.py           ChatAgentEnv: all of it as an Env
    group.py         groups of episodes
    dataset.py       batches of groups
    scripted.py      a policy of given texts
    check.py         check_env
    base.py          the shipped base's tokenizer, the default
    errors.py        every error
"""
