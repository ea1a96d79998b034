"""Text to tokens and back, exactly.

In reading order:

    bases.py              the shipped base models, and the renderer for any model
    pretrained.py         loads model folders without running untrusted code
    token_log.py          a growing token sequence
    escaping.py           keeps text from becoming control tokens
    call_values.py        argument values, typed by the tools' schemas
    call_format.py        how a chat template writes tool calls, and how to read them
    call_kinds.py         the kinds of calls: objects, named, keyed, Python
    call_learning.py      learns a template's call format
    probes.py             made-up conversations for a chat template
    harmony.py            replies made of several messages
    template_variables.py what a chat template reads besides the conversation
    template_text.py      messages as a chat template takes them
    reply_format.py       learns how a chat template writes replies
    chat_template.py      renders with a chat template, whole or by message
    rendering.py          encodes the part of a prompt that is new
    template.py           a renderer that uses a chat template
    template_report.py    what a chat template can do, in words
    parse_guard.py        rejects replies that would block a parser
    renderer.py           what an Env needs of a Cookbook renderer
    prompt_limit.py       the longest prompt
    loop_budget.py        renders long texts in threads
    images.py             checks images before they are rendered
    logprobs.py           log-probabilities of sampled tokens
    actions.py            reads sampled tokens as a reply
"""
