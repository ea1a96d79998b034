"""Text to tokens and back, exactly.

In reading order:

    bases.py          the shipped base models, and the renderer of any model
    pretrained.py     loads model folders without running untrusted code
    token_log.py      a growing token sequence
    escaping.py       keeps text from becoming control tokens
    call_values.py    values of arguments, typed by the tools' schemas
    call_format.py    how a chat template writes tool calls, and their reader
    call_learning.py  learns a format of calls from what a template shows
    harmony.py        replies made of several messages
    template_variables.py  the variables that a chat template reads
    probes.py         made-up conversations for a chat template
    chat_template.py  renders with a chat template, and learns its format
    template.py       a renderer that uses a chat template
    parse_guard.py    refuses replies that would block a parser
    renderer.py       what an Env needs of a Cookbook renderer
    prompt_limit.py   the longest prompt
    loop_budget.py    renders long texts in threads
    images.py         checks images before they are rendered
    logprobs.py       log-probabilities of sampled tokens
    actions.py        reads sampled tokens as a reply
"""
