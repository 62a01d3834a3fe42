"""Checks of values that come from outside; each error names the field."""

from __future__ import annotations

import math

from cleave.errors import ConfigError


def require_positive(
    who: str, name: str, value: float, *, most: float = math.inf, may_be_infinite: bool = False
) -> None:
    """Raise ConfigError that names the field, unless ``0 < value <= most``."""
    if may_be_infinite and value == math.inf:
        return
    if not (math.isfinite(value) and 0 < value <= most):
        limit = f" of at most {most:g}" if math.isfinite(most) else ""
        raise ConfigError(f"{who}: {name} is {value}, expected a positive finite number{limit}")
