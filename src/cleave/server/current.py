"""The fleet that ``cleave run`` started for the script it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cleave.errors import ConfigError

if TYPE_CHECKING:
    from cleave.server.fleet import Fleet

_current: list[Fleet] = []


def current_fleet() -> Fleet:
    """The fleet that ``cleave run`` started for this script; it is closed when the script ends.

    Raises:
        ConfigError: If the script was not started by ``cleave run``.
    """
    if not _current:
        raise ConfigError(
            "no fleet was started for this script: start it with 'cleave run --devices N SCRIPT', "
            "or make a fleet in it with cleave.Fleet() or cleave.local_fleet(2)"
        )
    return _current[-1]


@contextmanager
def as_current(fleet: Fleet) -> Iterator[None]:
    """Within the block `current_fleet` is ``fleet``."""
    _current.append(fleet)
    try:
        yield
    finally:
        _current.remove(fleet)
