"""One backend of each kind."""

import pytest

from cleave.compute.backend import Backend
from cleave.compute.numpy_backend import NumpyBackend
from cleave.compute.torch_backend import TorchBackend

BACKENDS: dict[str, Backend] = {"numpy": NumpyBackend(), "torch": TorchBackend("cpu")}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]
