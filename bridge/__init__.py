"""Turns a chat agent into an Env. Uses the Cookbook's types, but no game and no trainer.

There are nine rooms, and each imports only rooms above it:

    chat/            a model call and its reply, for every API
    tokens/          text to tokens and back, exactly
    episode/         one run of an agent: its calls, and what answers them
    conversations/   the token sequence that a call continues
    models/          frozen models besides the policy
    clients/         how an agent's calls reach evert: its client, real SDKs, take-over, HTTP
    env/             the Env
    records/         rollouts: written, read and replayed
    groups/          groups, advantages, batches

All rooms use:

    errors.py        the errors
    redaction.py     removes keys and passwords from texts
    off_loop.py      runs slow work in threads, off the event loop
    isolation.py     processes for code that runs on a model's output
    isolation_server.py  the server that forks these processes
    import_paths.py  imports the objects that settings name by import path
    tracebacks.py    tracebacks of the agent's own code
    ownership.py     the rollout that a task or thread belongs to
"""
