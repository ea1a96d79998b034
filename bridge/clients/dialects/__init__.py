"""The APIs that agents use, each read into a ``ChatRequest`` and written from a ``Reply``.

In reading order:

    dialect.py             what each API must define
    chat_completions.py    OpenAI's chat completions
    responses.py           OpenAI's responses, with the state behind ``previous_response_id``
    responses_tools.py     tools of responses: functions, custom tools, namespaces
    anthropic_messages.py  Anthropic's messages
    gemini.py              Gemini's generateContent
    gemini_contents.py     Gemini's contents as messages
    gemini_tools.py        Gemini's function declarations, schemas and call ids
    fields.py              the table of fields; formats and forced tools
    shapes.py              objects in the form of chat completions, to which all APIs are converted
    events.py              server-sent events, and text cut into deltas
    bodies.py              parses the JSON of a request's body without blocking the event loop
    api.py                 from a request's path and body to a call, and from a reply to an answer
    endpoint.py            one rollout's API
"""
