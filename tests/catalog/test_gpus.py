"""GPUs to rent have a peak, a utilisation, a memory and a price."""

import pytest

from cleave.catalog.gpus import Gpu, gpu, gpus
from cleave.errors import ConfigError


def test_the_a100_is_the_one_of_its_data_sheet() -> None:
    a100 = gpu("A100 80GB")
    assert a100.peak_flops_per_s == 312e12
    assert a100.memory_bytes == 80 * 10**9
    assert a100.sustained_flops_per_s == pytest.approx(0.45 * 312e12)


@pytest.mark.parametrize("each", gpus().values(), ids=lambda each: each.name)
def test_every_row_is_usable(each: Gpu) -> None:
    assert 0.2 < each.mfu < 0.6
    assert 0 < each.low_usd_per_hour <= each.usd_per_hour <= each.high_usd_per_hour


def test_a_name_of_two_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match="did you mean A100 40GB SXM4, A100 80GB SXM4"):
        gpu("A100")
