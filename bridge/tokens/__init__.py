"""Turns text into tokens and back, exactly.

In reading order:

    bases.py              the shipped base models, and the renderer for any model
    pretrained.py         loads model folders without running untrusted code
    token_log.py          stores a growing token sequence
    escaping.py           keeps text from becoming control tokens
    call_values.py        reads argument values, typed by the tools' schemas
    call_format.py        how a chat template writes tool calls, and how evert reads them
    call_kinds.py         the four kinds of call formats: objects, named, keyed, Python
    call_learning.py      learns a template's call format
    probes.py             made-up conversations that probe a chat template
    harmony.py            reads Harmony replies, which consist of several messages
    template_variables.py the variables and the date that a chat template reads
    template_text.py      converts messages to the form that a chat template takes
    reply_format.py       learns how a chat template writes replies
    chat_template.py      renders with a chat template, as a whole or message by message
    rendering.py          encodes only the new part of a prompt
    template.py           a renderer that uses a chat template
    template_report.py    reports what a chat template can do
    parse_guard.py        rejects replies that would block a parser
    renderer.py           wraps a Cookbook renderer for Envs
    prompt_limit.py       limits the length of prompts
    loop_budget.py        renders long texts in threads
    images.py             checks images before they are rendered
    logprobs.py           log-probabilities of sampled tokens
    actions.py            parses sampled tokens into a reply
"""
