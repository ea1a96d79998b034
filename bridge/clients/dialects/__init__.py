"""The supported APIs. Each one parses requests into ``ChatRequest`` and serializes ``Reply``.

In reading order:

    dialect.py             base class for all APIs
    chat_completions.py    OpenAI's Chat Completions API
    responses.py           OpenAI's Responses API, including ``previous_response_id``
    responses_tools.py     tools in the Responses API: functions, custom tools, namespaces
    anthropic_messages.py  Anthropic's Messages API
    gemini.py              Gemini's generateContent
    gemini_contents.py     converts Gemini's contents to messages
    gemini_tools.py        Gemini's function declarations, schemas and call ids
    fields.py              the table of supported fields; output formats and forced tools
    shapes.py              helpers for the chat completions format, which we use internally
    events.py              server-sent events, and splitting text into deltas
    bodies.py              parses JSON request bodies without blocking the event loop
    api.py                 routes HTTP requests to these APIs and builds the responses
    endpoint.py            the API of one rollout
"""
