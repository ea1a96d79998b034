"""The commands and their rooms, and the in-process engine; on top of bridge and games.

The commands, each a page that reads from top to bottom and a module that runs on its own:

    cli.py        the ``evert`` command
    train.py      ``evert train``: a run
    evaluate.py   ``evert evaluate``: models beside each other
    serve.py      ``evert serve``: weights over HTTP
    sweep.py      ``evert sweep``: a search over settings
    report.py     ``evert report``: runs as a page
    rescore.py    ``evert rescore``: other rewards for rollouts on record
    export.py     ``evert export``: conversations on record, for supervised training
    plan.py       ``evert engine plan``: what a model takes in memory, before it is loaded

What they share:

    command.py    running a command: help, errors in a line, Ctrl-C
    arguments.py  reading what it was given: ``key=value``, or values from Python

The rooms:

    engine/       the in-process engine: Tinker's clients without a service
    runs/         what a run is made of: settings, folder, engine, warm-up, progress, tracking
    loop/         a loop of one's own: rollouts as arrays, and data to train on
    models/       several models in training, side by side on one base
    evaluation/   playing tasks and scoring them, for ``evaluate`` and for held-out scores
    reporting/    the page and every figure
    sweeping/     the parts of ``evert sweep``
    serving/      the engine as a server of token ids, and clients of such servers
    workers/      rollouts in other processes and on other machines
    verl/         the same agents under verl's trainers
    trl/          the same agents under TRL's trainers
    verifiers/    verifiers' environments as agents, and agents as such
"""
