"""Images in requests to a served vision-language model."""

import base64
import io
from pathlib import Path
from typing import Any

from bases.seeing import SeeingConfig, main
from google import genai
from PIL import Image
from tests.trainers.kit import sampler_of
from tests.trainers.serving.conftest import sdks

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


def user(parts: list[Any]) -> dict[str, Any]:
    return {"role": "user", "content": parts}


def test_all_apis_show_the_image(engine: Engine, service: PolicyService, tmp_path: Path) -> None:
    folder = str(tmp_path / "seeing")
    main(SeeingConfig(out=folder))
    client = sampler_of(folder)
    prompts = prompt_renderer(model_renderer(folder, "qwen3_vl_instruct"))
    model = ChatModel(service.sample(client), prompts, context=512, max_tokens=4)
    records = ServedRecords(tmp_path / "served", {"eyes": prompts})
    service.chat({"eyes": model}, records)
    data, words = base64.b64encode(png()).decode(), "What colour?"
    url, text = f"data:image/png;base64,{data}", {"type": "text", "text": words}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    with sdks(service) as (open_ai, claude, gemini):
        messages: Any = [user([{"type": "image_url", "image_url": {"url": url}}, text])]
        chat = open_ai.chat.completions.create(model="eyes", messages=messages)
        image: dict[str, Any] = {"type": "input_image", "image_url": url, "detail": "auto"}
        messages = [user([image, {"type": "input_text", "text": words}])]
        response = open_ai.responses.create(model="eyes", input=messages)
        messages = [user([{"type": "image", "source": source}, text])]
        message = claude.messages.create(model="eyes", max_tokens=4, messages=messages)
        messages = [genai.types.Part.from_bytes(data=png(), mime_type="image/png"), words]
        content = gemini.models.generate_content(model="eyes", contents=messages)
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
