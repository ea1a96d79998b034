"""What a question in plain English asks: its words, and how people ask about each attribute.

Read in this order:

    wording.py       words of a question, brought to one form
    lexicon.py       how people ask about each attribute, and what they call the nouns
    parsed.py        what a question can ask: attributes, measures, several, a guess
    guesses.py       which noun a question names and says nothing else
    comparisons.py   "bigger than a car", "heavier than a brick"
    questions.py     a question in plain English -> what it asks, or nothing we can tell

Everything here is about words, and ``lexicon.toml`` holds them; what is true of a noun is not known
here.
"""
