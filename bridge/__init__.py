"""Turns a chat agent into an Env. Knows the Cookbook's types, but no game and no trainer.

Nine rooms; each imports only those above it:

    chat/            a model call and its reply, for every API
    tokens/          text to tokens and back, exactly
    episode/         one run of an agent: its calls, and the models that answer them
    conversations/   the token sequence that a call continues
    models/          frozen models besides the policy
    clients/         the ways to call: the handle, real SDKs, take-over, HTTP
    env/             the Env
    records/         writes, reads and replays rollouts
    groups/          groups, advantages, batches

All of them use:

    errors.py        the errors
    redaction.py     removes keys and passwords from texts
    off_loop.py      slow work in threads, off the event loop
    isolation.py     processes for code that runs on a model's output
    isolation_server.py  the server that forks these processes
    import_paths.py  objects named by import path
    tracebacks.py    tracebacks of the agent's own code
    ownership.py     the rollout that a task or thread belongs to
"""
