"""Chat agent -> Env. Knows the Cookbook's types; knows no game and no trainer.

Read in this order:

    agent.py         what an agent is, and what it may return
    requests.py      a model call, whatever API it came by
    reply.py         what is replied to it
    fields.py        the policies of a request's fields, and their readers
    bad_requests.py  the 400s
    keys.py          messages as keys
    prompt_limit.py  the longest prompt
    remote.py        models behind endpoints
    reply_policies.py    replies that do not parse, do not fit, or call too much
    formats.py       what a reply has to look like: response_format, forced tools
    schemas.py       the JSON schema of a reply, checked within limits
    offloop.py       work that would hold the event loop
    messages.py      messages of agents, as renderers take them
    dialects/        the APIs agents speak: chat completions, responses, Anthropic's messages
    faces/           the ways in: the handle, real SDKs, take-over, a loopback server, commands
    inbox.py         one trained role: calls that wait, notes, the clock
    refusals.py      an agent whose calls are refused again and again
    routes.py        which inbox or frozen model a model name leads to
    episode.py       one run of an agent: its life, and what is released with it
    models.py        the models beside the policy, by name
    sampling_ranges.py  what temperature, top_p and the like may be
    weights.py       one of them: weights of the engine in use
    servers.py       what the SDK wants of older Tinker servers of one's own
    literals.py      what keeps text from becoming control tokens
    rendering.py     what is needed of a Cookbook renderer
    long_text.py     long texts are rendered in threads
    logprobs.py      log-probabilities of a reply's text
    marks.py         replies that no parser can cope with
    images.py        images are data, opened before they are rendered
    tokens.py        a growing token sequence
    index.py         which beginnings of conversations are known
    echoes.py        tool calls that come back completed, or under other ids
    differences.py   the first message that is another, in words
    drift.py         what keeps a known reply from going on, and where
    conversation.py  one conversation, in messages and in exact tokens
    lineage.py       which conversation a call continues; drift
    actions.py       what sampled tokens say, and what if they do not parse
    limits.py        the Cookbook's limits, with the agent's own max_tokens
    endings.py       how an episode ends: the last transition and its report
    tracebacks.py    an agent's own frames
    diagnosis.py     who called, tool calls that were lost
    explain.py       a rollout for people
    options.py       the options of an Env, and their defaults
    outstanding.py   an observation that waits for its action
    ahead.py         what samples calls before a runner asks
    overlap.py       calls that are made while others wait
    turns.py         from an action to the next prompt
    traces.py        an episode as OpenTelemetry's spans
    tracers.py       where spans go
    env.py           ChatAgentEnv: all of it as an Env
    seats.py         agents with several trained roles
    heard.py         a renderer that remembers what it was asked to render
    cookbook_agent.py    an environment of the Cookbook's as an agent
    elsewhere.py     an agent whose calls somebody else answers
    seeds.py         seeds of episodes
    opponents.py     frozen models at seats: past checkpoints, players
    dialogue.py      a trajectory as what was told and said
    group_reward.py  rewards that compare a group
    judging.py       a model that ranks a group
    group.py         groups of episodes
    parallel.py      groups whose agents' calls are sampled at the same time
    credit.py        an advantage for every sampled token
    pieces.py        the same for the Cookbook's loop: a trajectory in pieces
    curriculum.py    which tasks a step plays
    sampler_log.py   what a sampler was told, in a file
    dataset.py       batches of groups
    records/         rollouts on record: replay, branches
    sequences.py     a trajectory as plain token sequences
    scripted.py      a policy of given texts
    check.py         check_env
    base.py          the shipped base's tokenizer, the default
    pretrained.py    models of folders, whose code is not run unless it is trusted
    imports.py       objects named by import path
    secrets.py       texts without the keys that this process knows
    errors.py        every error
"""
