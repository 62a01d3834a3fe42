"""Chooses the backend an agent or the host computes with."""

from __future__ import annotations

import importlib.util

from cleave.compute.backend import Backend
from cleave.errors import ConfigError

_INSTALL = "install it with: pip install 'cleave-train[host]'"


def load_backend(name: str = "auto", device: str = "auto", threads: int | None = None) -> Backend:
    """The backend asked for.

    Args:
        name: ``"torch"``, ``"numpy"``, or ``"auto"``: torch if it is installed, else numpy.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``; numpy computes on the CPU alone.
        threads: CPU threads to use; None leaves that to the library.

    Raises:
        ConfigError: If there is no such backend or device on this machine.
    """
    if name not in ("auto", "torch", "numpy"):
        raise ConfigError(f"backend is {name!r}, expected auto, torch or numpy")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}, expected 1 or more")
    has_torch = importlib.util.find_spec("torch") is not None
    if name == "torch" and not has_torch:
        raise ConfigError(f"backend torch: torch is not installed; {_INSTALL}, or use numpy")
    if has_torch and name != "numpy":
        return _torch(device, threads)
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device {device!r} needs the torch backend; {_INSTALL}")
    from cleave.compute.numpy_backend import NumpyBackend

    return NumpyBackend(threads)


def _torch(device: str, threads: int | None) -> Backend:
    try:
        from cleave.compute.torch_backend import TorchBackend
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"torch is installed but does not load ({error}); reinstall it, or use numpy"
        ) from error
    return TorchBackend(device, threads)
