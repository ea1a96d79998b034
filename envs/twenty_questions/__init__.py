"""Twenty Questions: the data, who answers, the game, and who plays.

Read in this order:

    nouns.py           what is to be found: 200 nouns, any CSV, any list of words
    facts.py           what is true of the shipped ones: yes, no, n/a
    wording.py         words of a question, brought to one form
    lexicon.py         how people ask about each attribute, and what they call the nouns
    questions.py       a question in plain English -> an attribute, a guess, or nothing we can tell
    game.py            state, rules, scoring, transcript; shared by all players
    answerers.py       who answers: the facts, or a model
    search.py          what a player may look things up in: the facts, a model, an address
    player.py          the player as an agent function; the tasks
    baselines.py       players without a model: random, casual, and the most informative question
    demonstrations.py  games to learn the form of the game from
    errors.py          what can be wrong with all this

The data lie beside the code: ``nouns.csv``, ``facts.csv``, ``lexicon.toml``, and where they come
from, ``PROVENANCE.md``. Importing this package loads none of it.
"""
