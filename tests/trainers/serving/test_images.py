"""Images in requests to a served model that sees."""

import base64
import io
from pathlib import Path
from typing import Any

import anthropic
import openai
import tinker
from bases.seeing import SeeingConfig, main
from google import genai
from PIL import Image

from evert import read_records
from evert.bridge.tokens.bases import model_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.serving.chat import ChatModel
from evert.trainers.serving.recording import ServedRecords
from evert.trainers.serving.service import PolicyService


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    return file.getvalue()


def test_every_api_shows_a_model_the_same_image(
    engine: Engine, service: PolicyService, tmp_path: Path
) -> None:
    folder = str(tmp_path / "seeing")
    main(SeeingConfig(out=folder))
    client: Any = tinker.ServiceClient().create_sampling_client(base_model=folder)
    prompts = prompt_renderer(model_renderer(folder, "qwen3_vl_instruct"))
    model = ChatModel(service.sample(client), prompts, context=512, max_tokens=4)
    records = ServedRecords(tmp_path / "served", {"eyes": prompts})
    service.chat({"eyes": model}, records)
    data, words = base64.b64encode(png()).decode(), "What colour?"
    url, root = f"data:image/png;base64,{data}", service.url.removesuffix("/v1")
    source = {"type": "base64", "media_type": "image/png", "data": data}
    with (
        openai.OpenAI(base_url=service.url, api_key=service.key) as open_ai,
        anthropic.Anthropic(base_url=root, api_key=service.key) as claude,
        genai.Client(api_key=service.key, http_options={"base_url": root}) as gemini,
    ):
        asked: Any = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": words},
        ]
        chat: Any = open_ai.chat.completions.create(
            model="eyes", messages=[{"role": "user", "content": asked}]
        )
        asked = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": words},
        ]
        response: Any = open_ai.responses.create(
            model="eyes", input=[{"role": "user", "content": asked}]
        )
        asked = [{"type": "image", "source": source}, {"type": "text", "text": words}]
        message = claude.messages.create(
            model="eyes", max_tokens=4, messages=[{"role": "user", "content": asked}]
        )
        asked = [genai.types.Part.from_bytes(data=png(), mime_type="image/png"), words]
        content: Any = gemini.models.generate_content(model="eyes", contents=asked)
    counts = {
        chat.usage.prompt_tokens,
        response.usage.input_tokens,
        message.usage.input_tokens,
        content.usage_metadata.prompt_token_count,
    }
    assert len(counts) == 1
    service.close()
    records.close()
    sizes = {len(record.prompts[0]) for record in read_records(tmp_path / "served")}
    assert len(sizes) == 1
    assert sizes < {*range(counts.pop())}
