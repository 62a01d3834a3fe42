"""Fleets inside this process."""

from collections.abc import Iterator

import pytest
from tests.train.local_runtime import LocalRuntime


@pytest.fixture
def fleet() -> Iterator[LocalRuntime]:
    runtime = LocalRuntime()
    yield runtime
    runtime.close()
