"""The APIs that agents speak, each read into a ``ChatRequest`` and written from a ``Reply``.

In reading order:

    dialect.py             what an API has to say of itself
    chat_completions.py    OpenAI's chat completions
    responses.py           OpenAI's responses, with the state behind ``previous_response_id``
    responses_tools.py     its tools: functions, custom tools, namespaces
    anthropic_messages.py  Anthropic's messages
    gemini.py              Gemini's generateContent
    gemini_contents.py     its contents as messages
    gemini_tools.py        its function declarations, schemas, and ids of calls
    fields.py              what becomes of each field, and reading formats and forced tools
    shapes.py              the forms of chat completions, which all are read into
    events.py              server-sent events, and text cut into deltas
    bodies.py              the JSON of a request's body, without holding the event loop
    endpoint.py            one rollout's API: a request's path and body to an answer
"""
