"""Scripts that make the tiny bases: ``python -m bases out=FOLDER``, in a checkout's root.

The bases ship with evert (``src/evert/bases``); these scripts do not. In reading order:

    dialogues.py    dialogues as tokens with their targets
    tokenizer.py    the tokenizers
    training.py     the model, the loss, the optimisers
    cards.py        the parts of every model card

``evert-tiny``:

    chat_corpus.py  what it is trained on
    chats.py        small talk, numbers, tools, identity
    guessing.py     random games of guess-number
    chat_card.py    measures its abilities

``evert-tiny-20q``:

    riddles.py      what it is trained on: riddles about the nouns, and games of weak players
    riddle_card.py  measures what it knows

``evert-tiny-moves``:

    moves.py        what it is trained on
    boards.py       moves at tic-tac-toe
    hands.py        hands of Blackjack
    move_card.py    measures how well it reads boards and hands

A vision model, which is not shipped:

    seeing.py       a tiny Qwen3-VL with random weights
"""
