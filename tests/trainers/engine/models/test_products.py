"""oneDNN's matrix products match PyTorch's, and are used only where they are faster."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit import Patch
from tests.trainers.kit import spied

from evert.trainers.engine.models import products
from evert.trainers.engine.models.products import linear
from evert.trainers.system import machine

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="PyTorch was built without oneDNN",
)


@pytest.fixture(scope="module", autouse=True)
def fast_here() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_onednn_is_faster", lambda: True)
        yield


@given(
    st.sampled_from([(80,), (1, 80), (2, 40), (1, 1, 600)]),
    st.sampled_from([(128, 160), (600, 30), (600, 600)]),
    st.booleans(),
    st.sets(st.sampled_from("xwb"), max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_onednn_gives_the_same_products_and_gradients_as_pytorch(
    rows: tuple[int, ...], sizes: tuple[int, int], biased: bool, trained: set[str]
) -> None:
    features, out = sizes
    x = torch.randn(*rows, features, requires_grad="x" in trained)
    weight = torch.randn(out, features, requires_grad="w" in trained)
    bias = torch.randn(out, requires_grad="b" in trained) if biased else None
    slope = torch.randn(*rows, out)

    def found(product: Any) -> list[torch.Tensor]:
        made = product(x, weight, bias)
        wanted = [t for t in (x, weight, bias) if t is not None and t.requires_grad]
        slopes = torch.autograd.grad(made, wanted, slope) if wanted else ()
        return [made.detach(), *slopes]

    for ours, theirs in zip(found(linear), found(F.linear), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def test_onednn_is_used_only_for_float32_products_that_become_faster(monkeypatch: Patch) -> None:
    shapes = spied(monkeypatch, products, "_product", lambda x, *_: (*x.shape,))
    for rows, features, out in ((1, 600, 600), (64, 128, 128), (63, 128, 128), (1, 128, 128)):
        linear(torch.ones(rows, features), torch.ones(out, features))
        linear(torch.ones(rows, features).bfloat16(), torch.ones(out, features).bfloat16())
    assert shapes == [(1, 600), (64, 128)]


def test_an_amd_processor_is_recognised_from_proc_cpuinfo(
    monkeypatch: Patch, tmp_path: Any
) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "_PROCESSOR", file)
    for text, expected in (("vendor_id\t: AuthenticAMD\n", True), ("GenuineIntel", False)):
        file.write_text(text)
        assert machine.made_by_amd() is expected
    file.unlink()
    monkeypatch.setattr("platform.processor", lambda: "AMD64 Family 25, AuthenticAMD")
    assert machine.made_by_amd()
