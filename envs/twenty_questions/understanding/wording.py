"""Normalizes the words of a question: lower case, expanded contractions, stemming.

``words_of`` splits text into words, and ``stem`` maps "wings", "winged" and "wing" to the same
stem. The sets at the end of this module contain stems with little or no weight. The lexicon's
phrases are stemmed in the same way, so stems don't have to be real words.
"""

import re
from functools import lru_cache

FRAME = re.compile(
    r"""
    ^(?: (?:so|ok|okay|well|then|and|but|hm+)\b [\s,]* )*
    (?: are\ (?:we|you)\ (?:talking|thinking)\ (?:about|of)
      | am\ i\ looking\ for
      | (?:do|would|could|can)\ (?:\w+\ ){1,3}
        (?:say|think|call(?=\ (?:it|this|that|one)\b)|classify|describe|consider) (?:\ that)?
      | (?:can|could)\ you\ tell\ me\ (?:if|whether)
      | i\ (?:wonder|want\ to\ know)\ (?:if|whether)
      | is\ it\ (?:true|correct|right|fair\ to\ say)\ that
    )\s+
    """,
    re.VERBOSE,
)
"""Matches meaningless text at the start of a question."""

CONTRACTIONS = (
    (r"(?<=\d),(?=\d{3})", ""),
    (r"\bcan't\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"\bcannot\b", "can not"),
    (r"\bhe or she\b|\bshe or he\b", "they"),
    (r"n't\b", " not"),
    (r"\bi'd\b", "i would"),
    (r"'(?:s|re|m|ll|ve|d)\b", " "),
)
TAG = re.compile(
    r"""
    [,;]? \s+
    (?: right | correct | yes | by\ any\ chance | by\ chance | perhaps | maybe | please | then
      | or\ something (?:\ like\ that)? | i\ (?:guess|think|suppose)
      | (?:is|are|was|does|do|did|can|could|has|have|would) n't\ (?:it|he|she|they|you)
    ) \s* [?.!]* \s* $
    """,
    re.VERBOSE,
)
"""Matches meaningless text at the end of a question."""

FORMS = """
    carry: carried carries; family: families; movie: movies;
    bed: bedding; blow: blown blew; bookshelf: bookshelves; break: broken; build: built; building:
    buildings; buy: bought; child: children; color: colour colours coloured colored colors; die:
    dies; draw: drawn drew; drive: drove driven; eat: ate eaten; find: found; fly: flown flew;
    foot: feet; get: gotten got; glass: glasses; grow: grown grew; have: has had; hold: held;
    keep: kept; kid: kids; knife: knives; kilo: kg kgs kilogram kilograms kilos; leaf: leaves;
    lie: lying; light: lit; live: lives lived; loaf: loaves; make: made composed comprised; man:
    men; metal: metallic; mouse: mice; need: needs; pound: lb lbs pounds; ride: ridden rode;
    scarf: scarves; see: seen; sell: sold; shelf: shelves; sing: sung sang; sit: sat; sleep:
    slept; speak: spoken spoke; stick: stuck; sting: stung; strike: struck; string: strings
    stringed; swim: swam; thing: things; tie: tied; tooth: teeth; use: used using; wear: worn
    wore; wolf: wolves; woman: women; wool: woolen woollen; write: wrote written
"""
"""Words with forms that the rules in ``stem`` would get wrong."""

WHOLE = """
    actually bare bed bite building bus cane cape care ceiling clothes clothing cute deadly dice
    eating evening feed fine gas hardly hate headphones here his huge its king living mane morning
    need news note painting pine plane pliers put really red ring saw scared scissors seed site
    speed spine spring sting string thing this tired tone topping trousers tube us wine wing
"""
"""Words that only look as if they had an ending."""

DIGITS = {
    **{"2": "two", "3": "three", "4": "four", "5": "five"},
    **{"6": "six", "7": "seven", "8": "eight", "9": "nine"},
}
SPELLED: dict[str, str] = DIGITS | {"dose": "does", "u": "you", "r": "are", "ppl": "people"}
"""Digits and common shorthand."""

IRREGULAR = {
    form: word.strip()
    for word, forms in (entry.split(":") for entry in FORMS.split(";"))
    for form in forms.split()
} | {word: word for word in WHOLE.split()}


SENTENCES = re.compile(r"(?<=[?!.:])\s+(?=\w)")
EXAMPLES = re.compile(r",\s+(?:like|such as|for example)\b[^?]*")
"""Matches examples at the end of a clause, such as ", like a watch"."""


def question_sentence(text: str) -> str:
    """Return the first sentence that ends with "?", or the whole text if there is none."""
    sentences = SENTENCES.split(EXAMPLES.sub("", text))
    questions = (sentence for sentence in sentences if sentence.endswith("?"))
    return next(questions, text) if len(sentences) > 1 else sentences[0]


def words_of(text: str) -> list[str]:
    """Return the normalized words of the question in a text, without ``FRAME`` and ``TAG``."""
    text = question_sentence(text).lower().replace("\u2019", "'").strip()
    text = FRAME.sub("", TAG.sub("", text))
    for pattern, replacement in CONTRACTIONS:
        text = re.sub(pattern, replacement, text)
    matches = (match[0] for match in re.finditer(r"[a-z0-9]+", text))
    return [SPELLED.get(word, word) for word in matches]


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return a word without its ending."""
    if word in IRREGULAR:
        base = IRREGULAR[word]
        return base if base in IRREGULAR else stem(base)
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif re.search(r"(?:ss|x|ch|sh|o)es$", word):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        word = word[:-1]
    elif word.endswith("ly") and len(word) > 5:
        word = word[:-2]
    if word in IRREGULAR:
        return IRREGULAR[word]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word.removesuffix("e") if len(word) > 3 else word


def stems(text: str) -> list[str]:
    """Return the stems of all words in a text."""
    return [stem(word) for word in words_of(text)]


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of whitespace-separated words as a set."""
    return frozenset(map(stem, text.split()))


NEGATIONS = stems_of(
    """
    hardly impossible incapable lack lacking neither never no non not unable without
    """
)
"""Words that negate an answer."""

FILLER = stems_of(
    """
    a ability about actually allow also am an and answer any anything are around as associate
    associated at basic be been being best both by called can capable category certain classified
    classify common commonly component considered could count currently definitely describe
    described design designed did do does encounter equip equipped especially ever every
    everything fairly famous for form from function general generally had has have having he her
    here hers hidden him his i if in include instead intend intended into involve involved is it
    item its itself just kind kinds known likely mainly many may maybe me mean meant might more
    most mostly much must my normally object of off often ok okay on one ones only or other our
    out over own part particular perhaps possess possibly pretty primarily probably question quite
    rather really refer regarded regular relate related require required said secret she should so
    some somehow something sometimes somewhat sort sorts specific still such tell tend than that
    the their them themselves then there these they thing think this those to together too totally
    type types typical typically under up us usual usually very was we well were when which while
    whose will with word would you your yours yourself
    """
)
"""Words that the parser ignores, unless they are part of a phrase in the lexicon."""

PARTICLES = stems_of(
    """
    many more around as by from in into off on one out over to together under up with
    """
)
"""Filler words that matter within a phrase: "made up", "in one hand"."""

WEAK = stems_of(
    """
    able animal belong big buy call character color come consist contain everyday exist feature
    find flower get give go good help home house human keep like live look main make name need
    people person purpose put see shape small someone take use want work
    """
)
"""Words with little meaning. A phrase may contain them, but they have a weight of only 0.25."""
