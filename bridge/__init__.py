"""Turns a chat agent into an Env. Depends on the Cookbook's types, but not on any game or trainer.

The code is split into nine packages. Each one imports only from the packages above it:

    chat/            a model call and its reply, for every API
    tokens/          exact conversion between text and tokens
    episode/         one run of an agent: its model calls, and how they are answered
    conversations/   the token sequence that a call continues
    models/          frozen models that agents can call in addition to the policy
    clients/         how an agent's calls reach evert: in process, through an SDK, or over HTTP
    env/             the Env
    records/         writes, reads and replays rollouts
    groups/          groups, advantages, batches

Shared by all packages:

    errors.py        evert's exception classes
    redaction.py     removes keys and passwords from text
    off_loop.py      runs slow work in threads, off the event loop
    isolation.py     sandboxed processes for code that handles a model's output
    isolation_server.py  the server that forks these processes
    import_paths.py  imports objects that settings refer to by import path
    tracebacks.py    tracebacks that show only the agent's own code
    ownership.py     tracks which rollout a task or thread belongs to
"""
