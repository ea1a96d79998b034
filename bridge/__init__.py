"""Chat agent -> Env. Knows the Cookbook's types; knows no game and no trainer.

Nine rooms; each imports only those above it:

    chat/            a call and a reply, in no API's form
    tokens/          text to tokens and back, exactly
    episode/         one run of an agent: who calls, and where the call leads
    conversations/   which token sequence a call goes on
    models/          frozen models beside the policy
    clients/         how a call gets in: the handle, real SDKs, take-over, HTTP
    env/             the Env
    records/         rollouts written, read, replayed
    groups/          groups, advantages, batches

What all of them use:

    errors.py        every error
    redaction.py     texts without the keys that this process knows
    off_loop.py      work that would hold the event loop
    import_paths.py  objects named by import path
    tracebacks.py    an agent's own frames
    ownership.py     the rollout that a task or thread belongs to
"""
