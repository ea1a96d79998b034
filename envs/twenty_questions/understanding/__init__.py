"""Parses questions in plain English.

Suggested reading order:

    wording.py       turns the words of a question into stems
    lexicon.py       phrases for each attribute, and names of the nouns
    parsed.py        the results: attributes, comparisons, compound questions, guesses
    guesses.py       questions that only name a noun
    comparisons.py   "bigger than a car", "heavier than a brick"
    questions.py     the parser itself

The parser knows the words in ``lexicon.toml``, but no facts about the nouns.
"""
