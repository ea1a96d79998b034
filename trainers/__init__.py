"""The embedded engine, training and evaluation, built on top of the bridge and the games.

Each package only imports from the packages listed above it:

    system/          files and processes on this machine, and running commands
    engine/          an in-process implementation of Tinker's clients
    rundir/          reading and writing the files in a run's folder
    config/          parsing and validating user settings
    serving/         an HTTP server for the engine, and clients for such servers
    workers/         rollouts in other processes and on other machines
    episodes/        playing episodes, and scoring the results
    reporting/       loading runs, and drawing all plots
    viewing/         the web page that shows runs and episodes, live or saved
    loop/            building blocks for writing your own training loop
    training/        a single training run
    sweeping/        searching over settings
    integrations/    TRL, verl, verifiers and Harbor
    commands/        the CLI commands, one module each

The entry point of the ``evert`` command:

    cli.py           runs the command given as the first argument
"""
