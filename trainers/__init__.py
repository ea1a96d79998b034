"""The embedded engine, training, evaluation; on top of bridge and games.

The rooms; each imports only those above it:

    system/          this machine: files, processes, running a command
    engine/          Tinker's clients in this process
    rundir/          what a run leaves in its folder
    config/          what a user may say, checked
    serving/         the engine as a server of token ids, and clients of such servers
    workers/         rollouts in other processes and on other machines
    episodes/        who plays, episodes played, and how they went
    reporting/       the page and every figure
    viewing/         runs and their episodes in a browser, live
    loop/            a loop of one's own, with models
    training/        one training run
    sweeping/        a search over settings
    integrations/    TRL, verl, verifiers
    commands/        a page each

And the ``evert`` command:

    cli.py           the command of a name
"""
