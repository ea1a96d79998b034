"""The parser of questions in plain English: words, and how people ask about each attribute.

Read in this order:

    wording.py       the words of a question as stems
    lexicon.py       phrases for each attribute, and names of the nouns
    parsed.py        what a question can ask: attributes, comparisons, several parts, a guess
    guesses.py       questions that only name a noun
    comparisons.py   "bigger than a car", "heavier than a brick"
    questions.py     turns a question in plain English into what it asks, or None

This folder knows only words, from ``lexicon.toml``, and no facts about the nouns.
"""
