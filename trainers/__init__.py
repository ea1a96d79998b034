"""The embedded engine, training, evaluation; on top of bridge and games.

The rooms; each imports only those above it:

    system/          this machine: files, processes, running a command
    engine/          Tinker's clients in this process
    rundir/          the files that a run leaves in its folder
    config/          the settings that a user gives, read and checked
    serving/         the engine as a server of token ids, and clients of such servers
    workers/         rollouts in other processes and on other machines
    episodes/        playing episodes, their players and their results
    reporting/       runs as data, and every figure
    viewing/         the page of runs and their episodes, live or saved
    loop/            the parts of a training loop of your own
    training/        one training run
    sweeping/        a search over settings
    integrations/    TRL, verl, verifiers, Harbor
    commands/        the commands, one module each

And the ``evert`` command:

    cli.py           runs the command that its first argument names
"""
