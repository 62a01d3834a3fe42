"""Cleave: train foundation models on the computers people already own."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleave.server.current import current_fleet
    from cleave.server.fleet import Fleet
    from cleave.server.local import local_fleet
    from cleave.train.offload import invalidate, offload, restore

try:
    __version__ = version("cleave-train")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Fleet",
    "__version__",
    "current_fleet",
    "invalidate",
    "local_fleet",
    "offload",
    "restore",
]

_HOMES = {
    "current_fleet": "cleave.server.current",
    "Fleet": "cleave.server.fleet",
    "invalidate": "cleave.train.offload",
    "local_fleet": "cleave.server.local",
    "offload": "cleave.train.offload",
    "restore": "cleave.train.offload",
}


def __getattr__(name: str) -> object:
    """The public names, imported at first use: lending a device needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "safetensors"}:
            raise
        raise ModuleNotFoundError(
            f"cleave.{name} needs {error.name}: pip install 'cleave-train[host]'", name=error.name
        ) from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
