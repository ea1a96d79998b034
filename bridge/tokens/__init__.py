"""Text to tokens and back, exactly.

In reading order:

    bases.py          the shipped base's tokenizer, the default
    pretrained.py     models of folders, whose code is not run unless it is trusted
    token_log.py      a growing token sequence
    escaping.py       what keeps text from becoming control tokens
    call_format.py    how a chat template writes tool calls
    probes.py         conversations that show what a chat template does
    chat_template.py  what a chat template shows of itself
    template.py       a renderer made of it
    parse_guard.py    replies that no parser can cope with
    renderer.py       what is needed of a Cookbook renderer
    prompt_limit.py   the longest prompt
    loop_budget.py    long texts are rendered in threads
    images.py         images are data, opened before they are rendered
    logprobs.py       log-probabilities of sampled tokens
    actions.py        what sampled tokens say, and what if they do not parse
"""
