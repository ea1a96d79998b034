"""Images are read, placed, sampled from and trained on as in transformers."""

import gc
import io
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from bases.seeing import SeeingConfig, main
from PIL import Image
from tests.trainers.kit import sampler_of, shaken, snapshot, trainer_of
from tinker import types
from torch import Tensor

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import LossInputError, SamplingRequestError
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models import pictures
from evert.trainers.engine.models.base_models import load_model
from evert.trainers.engine.models.pictures import PictureReader, uncut_start, vision_inputs

IMAGE_PAD = 514
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a tiny random Qwen3-VL."""
    folder = str(tmp_path_factory.mktemp("seeing"))
    main(SeeingConfig(out=folder))
    return folder


def image(colour: str = "red", size: tuple[int, int] = (32, 32)) -> Any:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    count = size[0] * size[1] // 256
    return types.ImageChunk(data=file.getvalue(), format="png", expected_tokens=count)


def text(*tokens: int) -> types.EncodedTextChunk:
    return types.EncodedTextChunk(tokens=list(tokens))


def prompt(*chunks: Any) -> types.ModelInput:
    return types.ModelInput(chunks=list(chunks))


def params(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 5, "temperature": 1.0, "stop": [505], **options})


def grey(*shades: int) -> types.ModelInput:
    """Return a prompt with text between images of these shades."""
    parts = [(image(f"rgb({s},{s},{s})", (32, 16 + 16 * (s % 2))), text(9, s)) for s in shades]
    return prompt(text(5, 6, 512), *(chunk for pair in parts for chunk in pair), text(7))


def test_the_tokens_of_an_image_share_an_id_computed_from_its_pixels(
    seeing: str, tmp_path: Path
) -> None:
    uncounted = image(size=(48, 32)).model_copy(update={"expected_tokens": None})
    row = PictureReader(seeing).read(prompt(text(1), uncounted, text(2, 3)))
    [picture] = row.pictures
    assert row.ids == [1, *[picture.name] * 6, 2, 3]
    assert picture.name < 0
    assert picture.grid == (1, 4, 6)
    assert picture.patches.shape == (24, 3 * 2 * 8 * 8)

    main(SeeingConfig(out=str(tmp_path)))
    config = tmp_path / "preprocessor_config.json"
    config.write_text(config.read_text().replace('"resample": 3', '"resample": 2'))

    def name(folder: str, chunk: types.ImageChunk) -> int:
        return PictureReader(folder).read(prompt(chunk, text(1))).ids[0]

    red = name(seeing, image("red"))
    assert name(seeing, image("red")) == red
    assert red not in (name(seeing, image("blue")), name(str(tmp_path), image("red")))


def test_only_the_latest_pictures_are_cached(seeing: str, monkeypatch: Any) -> None:
    reader = PictureReader(seeing)
    first = reader.read(prompt(image("red"), text(1))).pictures[0]
    assert reader.read(prompt(image("red"), text(1))).pictures[0] is first
    name = first.name
    monkeypatch.setattr(pictures, "_CACHE_BYTES", first.patches.nbytes)
    reader.read(prompt(image("blue"), text(1)))
    del first
    gc.collect()
    assert name not in pictures._in_use


def test_threads_that_read_a_picture_concurrently_share_it(seeing: str, monkeypatch: Any) -> None:
    both, prepared = threading.Barrier(2, timeout=60), PictureReader._prepared

    def in_step(self: PictureReader, *args: Any) -> pictures.Picture:
        both.wait()
        return prepared(self, *args)

    monkeypatch.setattr(PictureReader, "_prepared", in_step)
    first_reader, second_reader = PictureReader(seeing), PictureReader(seeing)
    for number, readers in enumerate([(first_reader, first_reader), (first_reader, second_reader)]):
        question = grey(80 + number)
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(
                lambda reader, question=question: reader.read(question), readers
            )
        assert first.pictures[0] is second.pictures[0]


def test_an_invalid_image_is_refused(seeing: str, tiny_model: str) -> None:
    pointer = types.ImageAssetPointerChunk(format="png", location="/x")
    wrong: list[tuple[Any, str]] = [
        (
            types.ImageChunk(data=b"no image", format="png"),
            "image of 8 bytes that can't be decoded",
        ),
        (
            types.ImageChunk(data=image().data[:60], format="png"),
            "be decoded; expected a com",
        ),
        (image().model_copy(update={"expected_tokens": 5}), "4 tokens, but expected_tokens is 5"),
        (pointer, "of type 'image_asset_pointer'"),
        (text(-7), "token id -7; expected 0 or more"),
    ]
    for chunk, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            PictureReader(seeing).read(prompt(image(), chunk, text(1)))
    with pytest.raises(ValueError, match="chunk that is not text.*of type qwen3. .*qwen3_vl"):
        PictureReader(tiny_model).read(prompt(image(), text(1)))


def family(name: str) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    text_config = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rope_parameters":
        {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
    }  # fmt: skip
    seen = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2}
    by_family: dict[str, dict[str, Any]] = {
        "qwen2_vl": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        "qwen2_5_vl": {
            "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        "qwen3_vl": {
            "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
        },
    }  # fmt: skip
    tokens = {"image_token_id": 61, "video_token_id": 62, "vision_start_token_id": 60}
    config = AutoConfig.for_model(
        name, text_config=text_config, vision_config=seen | by_family[name], **tokens
    )
    torch.manual_seed(0)
    build: Any = AutoModelForImageTextToText
    return shaken(build.from_config(config))


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_every_family_gets_the_same_picture_inputs_as_in_transformers(
    name: str, seeing: str
) -> None:
    model, reader = family(name), PictureReader(seeing)
    sight = vision_inputs(model)
    assert sight is not None
    images = image("red", (48, 32)), image("blue")
    row = reader.read(prompt(text(1, 2, 60), images[0], text(3, 60), images[1], text(4, 5)))
    ids = np.asarray(row.ids)
    inputs = {"input_ids": sight.ids(torch.from_numpy(ids)[None]), **sight.pixels([ids], CPU)}
    kinds = torch.from_numpy((ids < 0).astype(np.int32))[None]
    places, _ = model.model.get_rope_index(
        inputs["input_ids"], mm_token_type_ids=kinds, image_grid_thw=inputs["image_grid_thw"]
    )
    assert np.array_equal(sight.positions(ids), places[:, 0].numpy())
    with torch.no_grad():
        expected = model(**inputs, mm_token_type_ids=kinds).logits
        positions = torch.from_numpy(sight.positions(ids))[:, None]
        logits = model(**inputs, position_ids=positions).logits
    assert torch.allclose(logits, expected, atol=1e-5)


def test_an_image_token_in_a_text_is_not_an_image_and_images_are_not_cut(seeing: str) -> None:
    sight = vision_inputs(load_model(seeing, CPU, torch.float32))
    assert sight is not None
    assert sight.ids(torch.tensor([[3, IMAGE_PAD, -9, 4]])).tolist() == [[3, 515, IMAGE_PAD, 4]]
    row = np.array([1, -5, -5, -6, -6, -6, 2])
    assert [uncut_start(row, start) for start in range(8)] == [0, 1, 1, 3, 3, 3, 6, 7]


@cache
def loaded(folder: str) -> Any:
    return load_model(folder, CPU, torch.float32)


def logprobs_of_whole(seeing: str, whole: types.ModelInput) -> np.ndarray:
    """Return the log-probability of each token, computed by transformers."""
    row = PictureReader(seeing).read(whole)
    model, ids = loaded(seeing), np.asarray(row.ids)
    sight = vision_inputs(model)
    assert sight is not None
    call: Any = model
    with torch.no_grad():
        logits = call(
            input_ids=sight.ids(torch.from_numpy(ids)[None]),
            mm_token_type_ids=torch.from_numpy((ids < 0).astype(np.int32))[None],
            **sight.pixels([ids], CPU),
        ).logits[0]
    targets = torch.from_numpy(ids[1:].clip(0))
    logprobs: Tensor = logits[:-1].log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return logprobs.numpy()


def answered(question: types.ModelInput, tokens: Sequence[int]) -> types.ModelInput:
    return prompt(*question.chunks, text(*tokens))


def test_rows_with_images_get_the_same_scores_as_from_the_model(
    engine: Engine, seeing: str
) -> None:
    client = sampler_of(seeing)
    padded = prompt(text(5, IMAGE_PAD), image(), text(IMAGE_PAD, 7))
    prompts = [grey(10), grey(11, 12), prompt(text(5, 6, 7)), grey(11), grey(10, 13, 14), padded]

    def check(question: types.ModelInput, sequence: types.SampledSequence) -> types.ModelInput:
        whole = answered(question, sequence.tokens)
        expected = logprobs_of_whole(seeing, whole)[-len(sequence.tokens) :]
        assert sequence.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        return whole

    futures = [client.sample(question, 2, params(max_tokens=4)) for question in prompts]
    wholes = [
        check(question, sequence)
        for question, future in zip(prompts, futures, strict=True)
        for sequence in future.result().sequences
    ]
    scored = [client.compute_logprobs(whole) for whole in wholes]
    for whole, future in zip(wholes, scored, strict=True):
        values, expected = future.result()[1:], logprobs_of_whole(seeing, whole)
        ids = PictureReader(seeing).read(whole).ids[1:]
        assert [value is None for value in values] == [token < 0 for token in ids]
        known = [e for e, token in zip(expected.tolist(), ids, strict=True) if token >= 0]
        assert [v for v in values if v is not None] == pytest.approx(known, abs=1e-4)

    [reply] = client.sample(prompts[1], 1, params()).result().sequences
    before = client.sampler.stats.prompt_tokens
    more = prompt(*answered(prompts[1], reply.tokens).chunks, image("red"), text(8, 9))
    check(more, client.sample(more, 1, params()).result().sequences[0])
    # Only the last sampled token and the new tokens (end, image and two of text) are computed.
    assert client.sampler.stats.prompt_tokens - before <= 1 + 4 + 2


def datum(question: types.ModelInput, reply: list[int]) -> types.Datum:
    chunks = [*question.chunks, text(*reply[:-1])] if len(reply) > 1 else question.chunks
    length = prompt(*chunks).length
    weights = [0.0] * (length - len(reply)) + [1.0] * len(reply)
    targets = [0] * (length - len(reply)) + reply
    inputs: Any = {"target_tokens": targets, "weights": weights}
    return types.Datum(model_input=prompt(*chunks), loss_fn_inputs=inputs)


@pytest.mark.parametrize("full_parameter", [True, False])
def test_the_trainer_learns_from_images(full_parameter: bool, seeing: str, tmp_path: Path) -> None:
    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter):
        service = tinker.ServiceClient()
        training = trainer_of(seeing, rank=4)
        client = snapshot(training)
        prompts = [grey(40), grey(41, 42), prompt(text(5, 6, 7))]
        replies = [client.sample(row, 1, params()).result().sequences[0] for row in prompts]
        data = [datum(row, reply.tokens) for row, reply in zip(prompts, replies, strict=True)]
        first = training.forward_backward(data, "cross_entropy").result()
        for reply, output in zip(replies, first.loss_fn_outputs, strict=True):
            logprobs = output["logprobs"].to_numpy()[-len(reply.tokens) :]
            assert logprobs.tolist() == pytest.approx(reply.logprobs, abs=1e-4)
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        second = training.forward(data, "cross_entropy").result()
        assert second.metrics["loss:sum"] < first.metrics["loss:sum"]
        path = training.save_weights_for_sampler("x").result().path
        again = service.create_sampling_client(model_path=path)
        now = snapshot(training)
        whole = answered(prompts[1], replies[1].tokens)
        scores = [sampler.compute_logprobs(whole).result()[-2:] for sampler in (again, now)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_an_invalid_image_fails_only_its_request(engine: Engine, seeing: str) -> None:
    client = sampler_of(seeing)
    broken = prompt(text(1), types.ImageChunk(data=b"?", format="png", expected_tokens=1), text(2))
    good, bad = client.sample(grey(50), 1, params()), client.sample(broken, 1, params())
    with pytest.raises(SamplingRequestError, match="The prompt contains an image of 1 bytes that"):
        bad.result()
    assert good.result().sequences[0].tokens
    with pytest.raises(SamplingRequestError, match="prompt ends with an image; it must end"):
        client.sample(prompt(text(1), image()), 1, params()).result()
    with pytest.raises(
        SamplingRequestError, match="token ids from -5 to 1, but the model's ids go from 0"
    ):
        client.sample(prompt(text(1, -5)), 1, params()).result()
    training = trainer_of(seeing)
    data = [datum(prompt(text(1)), [2]), datum(broken, [3])]
    with pytest.raises(
        LossInputError, match="Datum 1 contains an image of 1 bytes that can't be decoded"
    ):
        training.forward_backward(data, "cross_entropy")
