"""The APIs that agents use, each read into a ``ChatRequest`` and written from a ``Reply``.

In reading order:

    dialect.py             what each API must define
    chat_completions.py    OpenAI's chat completions
    responses.py           OpenAI's responses, with the state behind ``previous_response_id``
    responses_tools.py     its tools: functions, custom tools, namespaces
    anthropic_messages.py  Anthropic's messages
    gemini.py              Gemini's generateContent
    gemini_contents.py     its contents as messages
    gemini_tools.py        its function declarations, schemas, and ids of calls
    fields.py              the table of fields; formats and forced tools
    shapes.py              the forms of chat completions, into which all APIs are read
    events.py              server-sent events, and text cut into deltas
    bodies.py              the JSON of a request's body, without blocking the event loop
    api.py                 from a request's path and body to a call, and from a reply to an answer
    endpoint.py            one rollout's API
"""
