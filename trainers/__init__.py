"""The embedded engine, and training, on top of the bridge and the games.

The command, in reading order:

    cli.py              the ``evert`` command
    train.py            ``python -m evert.trainers.train``: a run from top to bottom
    recipes.py          the games' defaults, the settings of a run
    engine_choice.py    embedded engine or service
    run_folder.py       what a run leaves behind, and resuming
    progress.py         what is shown meanwhile
    evaluate.py         playing held-out tasks
    report.py           the figures, samples and table at the end
    plots.py            the learning curve

The engine, from the outside in:

    engine.py           ``embedded_engine``: installs it, and everything that is loaded
    clients.py          Tinker's service, training and REST clients
    sampling_client.py  its sampling client
    futures.py          the futures they return
    network.py          nothing leaves this machine
    checkpoints.py      ``tinker://`` paths and folders
    models.py           base models by name; LoRA
    training.py         forward, backward, optimizer step
    losses.py           the losses
    sampler.py          many requests, one running batch
    batches.py          rows decoded together over a cache
    drawing.py          drawing tokens, stops
    frozen.py           weights ready to sample from
    lean.py             a forward pass of our own for Llama-like models
    errors.py           the engine's errors

The tiny base:

    pretrain.py         ``python -m evert.trainers.pretrain``
    pretrain_corpus.py  its dialogues as tokens
    pretrain_chats.py   small talk, numbers, tools, identity
    pretrain_games.py   random games of guess-number
    pretrain_card.py    its abilities, measured
    tiny_tokenizer.py   its tokenizer
"""
