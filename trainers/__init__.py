"""Training, what comes before and after it, and the embedded engine; on top of bridge and games.

The commands, each a module that runs on its own, with its parts in a folder where it has many:

    cli.py              the ``evert`` command
    train.py            ``evert train``: a run from top to bottom
    evaluate.py         ``evert evaluate``: models beside each other
    evaluation/         its parts
    sweep.py            ``evert sweep``: a search over settings
    sweeping/           its parts
    report.py           ``evert report``: runs as a page
    reporting/          its parts
    pretrain.py         ``evert pretrain``: the tiny bases
    pretraining/        its parts

What a run is made of:

    recipes.py          the games' defaults, the settings of a run
    engine_choice.py    embedded engine or service
    embedded/           the embedded engine
    run_folder.py       what a run leaves behind, and resuming
    warm_up.py          supervised steps before RL
    demonstrations.py   what they are on
    held_out.py         playing held-out tasks
    progress.py         what is shown meanwhile
    tracking.py         Weights & Biases and TensorBoard, where asked for
    wandb_run.py        a run on Weights & Biases
    tensorboard_log.py  a run in TensorBoard
    summary.py          the figures, samples and table at the end
    plots.py            the learning curve
"""
