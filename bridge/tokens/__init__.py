"""Converts text to tokens and back without loss.

In reading order:

    bases.py              the base models shipped with evert, and how to get a model's renderer
    pretrained.py         loads model folders without running untrusted code
    token_log.py          stores a growing token sequence
    escaping.py           prevents text from turning into control tokens
    call_values.py        parses argument values and converts them to the types in tool schemas
    call_format.py        how a chat template writes tool calls, and how evert reads them
    call_kinds.py         the four types of call formats: objects, named, keyed, Python
    call_learning.py      learns a template's call format
    probes.py             made-up conversations for probing a chat template
    harmony.py            parses Harmony replies, which consist of several messages
    template_variables.py the variables and the date that a chat template reads
    template_text.py      converts messages to the format that a chat template expects
    reply_format.py       learns how a chat template writes replies
    chat_template.py      renders whole conversations or single messages with a chat template
    rendering.py          encodes only the new part of a prompt
    template.py           a renderer based on a chat template
    template_report.py    reports what a chat template supports
    parse_guard.py        rejects replies that would take too long to parse
    renderer.py           wraps a Cookbook renderer for Envs
    prompt_limit.py       limits the length of prompts
    loop_budget.py        renders long texts in threads
    images.py             checks images before they are rendered
    logprobs.py           log-probabilities of the sampled tokens
    actions.py            parses sampled tokens into a reply
"""
