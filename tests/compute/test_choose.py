"""Choosing a backend, and the types torch computes in."""

import subprocess
import sys

import pytest
import torch
from tests.compute.run import run_case

from cleave.compute import load_backend
from cleave.compute.compute_types import ComputeTypes
from cleave.compute.selftest import selftest_cases
from cleave.compute.torch_backend import TorchBackend
from cleave.core.matrix import DType
from cleave.errors import ConfigError


def test_torch_is_taken_where_it_is_installed() -> None:
    assert load_backend().name.startswith("torch-")
    assert load_backend("torch", "cpu").name == "torch-cpu"
    assert load_backend("numpy").name == "numpy"


@pytest.mark.parametrize(
    ("name", "device", "threads", "message"),
    [
        ("jax", "auto", None, "expected auto, torch or numpy"),
        ("numpy", "cuda", None, "needs the torch backend; install it with"),
        ("torch", "tpu", None, "device 'tpu' is not usable here, this torch has: .*cpu"),
        ("numpy", "auto", 0, "threads is 0"),
    ],
)
def test_what_is_not_there_is_a_clear_error(
    name: str, device: str, threads: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_backend(name, device, threads)


def test_without_torch_there_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load_backend().name == "numpy"
    with pytest.raises(ConfigError, match=r"pip install 'cleave-train\[host\]'"):
        load_backend("torch")


def test_the_numpy_backend_and_the_self_test_do_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from cleave.compute import load_backend\n"
        "from cleave.compute.selftest import selftest_cases\n"
        "backend = load_backend('numpy', threads=1)\n"
        "selftest_cases(backend.dtypes, backend.ops)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_narrow_types_are_computed_in_a_type_that_keeps_sums() -> None:
    types = ComputeTypes(torch.device("cpu"))
    for dtype in (torch.bfloat16, torch.float16):
        assert types.of(dtype) in (dtype, torch.float32)
        assert types.of(dtype) is types.of(dtype)
    assert types.of(torch.float64) is torch.float64


def test_a_slow_or_inexact_narrow_type_is_not_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {128: (5.0, 1.0), 512: (0.1, 1.0)}
    monkeypatch.setattr(ComputeTypes, "_seconds", lambda self, dtype, size: seconds[size])
    assert ComputeTypes(torch.device("cpu")).of(torch.float16) is torch.float32
    seconds[128] = (0.1, 1.0)
    assert ComputeTypes(torch.device("cpu")).of(torch.float16) is torch.float16
    monkeypatch.setattr(ComputeTypes, "_is_exact_enough", lambda self, dtype: False)
    assert ComputeTypes(torch.device("cpu")).of(torch.float16) is torch.float32


def test_products_by_way_of_fp32_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ComputeTypes, "_is_better_as_it_is", lambda self, dtype: False)
    backend = TorchBackend("cpu")
    assert set(backend.measure_compute_types().values()) == {DType.F32}
    cases = selftest_cases((DType.BF16, DType.F16), backend.ops)
    assert [fault for case in cases if (fault := run_case(backend, case))] == []
