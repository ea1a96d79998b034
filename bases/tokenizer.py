"""Trains the tokenizers of the tiny base models. Each tokenizer is saved with its base.

The tokenizer is a byte-level BPE. Its vocabulary is small enough that the embedding does not
dominate the parameter count, and it still encodes any text losslessly.

The Cookbook's ``qwen3_instruct`` renderer encodes a conversation message by message, while
``apply_chat_template`` encodes the whole text. For both to produce the same tokens, the
tokenization must not depend on where the text was split. Three rules ensure that: a newline is
always one token, a digit is always one token, and no other token spans two words.
"""

import json
from typing import Any

import tokenizers  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 512
"""Vocabulary of ``evert-tiny``: 256 bytes, merges, and nine tokens in CONTROL and MARKERS."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens. With ``split_special_tokens=True``, plain text is never encoded as these."""

MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added but non-special tokens. As in Qwen3, they are recognized in plain text too."""

MAX_LENGTH = 8192

# A token never spans two of these pieces. Digits are separate, so that every number has a unique
# encoding. A piece of punctuation includes the space after it (": "), and a word includes the space
# before it (" high").
_PIECES = r"\n|[0-9]| ?[A-Za-z]+|[^\sA-Za-z0-9]+ ?|\s"

_TOOLS_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""

_TOOLS_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def _jinja_string(text: str) -> str:
    """Quote ``text`` as a Jinja string literal."""
    return "'" + text.replace("\\", "\\\\").replace("\n", "\\n").replace("'", "\\'") + "'"


def tools_prompt(tools: list[dict[str, Any]]) -> str:
    """Return the system message in which Qwen3 lists tools (name, description, parameters)."""
    lines = [json.dumps({"type": "function", "function": tool}) for tool in tools]
    return "\n".join([_TOOLS_BEFORE, *lines]) + _TOOLS_AFTER


# Qwen3's instruct template with one change, which the Cookbook's renderer makes as well: each tool
# response gets a separate user block.
CHAT_TEMPLATE = (
    """\
{%- set first_is_system = messages and messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if first_is_system and messages[0].content %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- """
    + _jinja_string(_TOOLS_BEFORE)
    + """ }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- """
    + _jinja_string(_TOOLS_AFTER)
    + """ + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (tools and first_is_system and loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
)

# Text to learn the merges from. Important words are repeated.
_GAMES = """
Your job is to guess a integer between 0 and 1024. You can output your guess with the format \
Guess: <guess> (without the angle brackets), and say nothing else. Then we will tell you whether \
you guess is too high, too low, or correct.
Failed to parse. Please output in the format Guess: <guess> (without the angle brackets), and say \
nothing else.
Too low
Too high
Correct
Guess: 7
Let's play a game. Say you are 7. I am 7. I'm 7. I am not 7. You are 7. You are not 7. No. Yes.
system
user
assistant
"""

_ENGLISH = """
the of and to in is you that it he was for on are as with his they I at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their
if will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who its now find
long down day did get come made may part
Hello. Hi! Thank you. Please repeat after me. Copy this. What is the answer? Which is larger?
Which is smaller? What is the midpoint between 1 and 3? The question is: yes or no. {"name": "
", "arguments": {" "city": "weather"}} {"type": "function", "function": {"description": "string"
"""


def make_tokenizer(text: str = _GAMES, size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn the merges and build the tokenizer. The result is deterministic.

    Args:
        text: Text to train on. It is repeated to make the tokenizer learn its words first.
        size: Vocabulary size.
    """
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = _pre_tokenizer()
    core.decoder = tokenizers.decoders.ByteLevel()
    texts = [text] * 16 + [_TOOLS_BEFORE + _TOOLS_AFTER] * 4 + [_ENGLISH] * 3
    core.train_from_iterator(texts, _trainer(size))
    core.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in CONTROL])
    core.add_tokens([tokenizers.AddedToken(token, special=False) for token in MARKERS])
    build: Any = PreTrainedTokenizerFast  # transformers does not type its constructors
    tokenizer: PreTrainedTokenizerFast = build(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
        chat_template=CHAT_TEMPLATE,
    )
    return tokenizer


def _pre_tokenizer() -> Any:
    build = tokenizers.pre_tokenizers
    pieces = build.Split(tokenizers.Regex(_PIECES), behavior="isolated")
    as_bytes = build.ByteLevel(add_prefix_space=False, use_regex=False)
    return build.Sequence([pieces, as_bytes])


def _trainer(size: int) -> Any:
    return tokenizers.trainers.BpeTrainer(
        vocab_size=size - len(CONTROL) - len(MARKERS),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
