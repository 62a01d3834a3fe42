"""The table's devices have sustained rates by type, memory and a kind."""

import pytest

from cleave.catalog.devices import KINDS, DeviceModel, device_model, device_models, of_kind, typical
from cleave.core.matrix import DType
from cleave.errors import ConfigError


def test_a_rate_is_the_sustained_share_of_the_peak() -> None:
    model = device_model("RTX 3060")
    assert model.kind == "desktop"
    assert model.usable_memory_bytes == 10 * 10**9
    assert model.flops_per_s[DType.F32] == pytest.approx(0.7 * 12.74e12)  # peak 12,740 GFLOP/s
    assert model.flops_per_s[DType.BF16] == pytest.approx(0.7 * 25.5e12)  # the GPU's fp16


def test_two_byte_elements_are_computed_in_fp32_where_only_a_cpu_has_fp16() -> None:
    rates = device_model("Raspberry Pi 5").flops_per_s  # the table has fp16 at twice the peak
    assert rates[DType.BF16] == rates[DType.F16] == rates[DType.F32]


@pytest.mark.parametrize("model", device_models().values(), ids=lambda model: model.name)
def test_every_row_is_usable(model: DeviceModel) -> None:
    assert model.kind in KINDS
    assert 0 < model.sustained_share < 1
    assert 1e10 < model.flops_per_s[DType.F32] <= model.flops_per_s[DType.BF16] < 1e15
    assert 5e8 < model.usable_memory_bytes < 1e11


def test_a_kind_is_named_in_the_singular_or_the_plural() -> None:
    assert of_kind("Phones") == of_kind("phone")
    assert {model.kind for model in of_kind("sbc")} == {"sbc"}
    with pytest.raises(ConfigError, match="'fridge' is no kind of device: the kinds are phone"):
        of_kind("fridge")


def test_the_typical_one_is_in_the_middle() -> None:
    rates = sorted(model.flops_per_s[DType.F32] for model in of_kind("tablet"))
    assert len(rates) == 3
    assert typical("tablet").flops_per_s[DType.F32] == rates[1]
