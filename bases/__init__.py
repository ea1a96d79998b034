"""Scripts that train the tiny base models. Run ``python -m bases out=FOLDER`` in a checkout.

The bases ship with evert (in ``src/evert/bases``), but these scripts do not. Suggested reading
order:

    dialogues.py    tokenized dialogues and their training targets
    tokenizer.py    the tokenizers
    training.py     the model, the loss and the optimisers
    cards.py        the sections that all model cards share

``evert-tiny``:

    chat_corpus.py  the training data
    chats.py        small talk, numbers, tools and the identity game
    guessing.py     random guess-number games
    chat_card.py    measures what the base can do

``evert-tiny-20q``:

    riddles.py      the training data: riddles about the nouns, and games played by weak players
    riddle_card.py  measures what the base knows

``evert-tiny-moves``:

    moves.py        the training data
    boards.py       tic-tac-toe moves
    hands.py        Blackjack hands
    move_card.py    measures how well the base reads boards and hands

A vision model that does not ship with evert:

    seeing.py       a tiny Qwen3-VL with random weights
"""
