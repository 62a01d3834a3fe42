"""Which module is offloaded with what. Modules are known weakly; nothing is stored on them."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field

import torch
from torch import nn

from cleave.core.work import Work
from cleave.train.held import Held, Orphans, Recomputed, Unread
from cleave.train.runtime import Runtime
from cleave.train.versions import Weights

log = logging.getLogger("cleave.train")


@dataclass(eq=False)
class State:
    """What the layers of offloaded models share.

    Attributes:
        runtime: The fleet.
        place: ``"auto"``: what the host does sooner stays there; ``"devices"``: all goes out.
        weights: Versions of the weights.
        orphans: Work that an exception left behind.
        unread: Weight gradients under way.
        recomputed: What checkpointing has just made again.
    """

    runtime: Runtime
    place: str
    weights: Weights
    orphans: Orphans = field(default_factory=Orphans)
    unread: Unread = field(default_factory=Unread)
    recomputed: Recomputed = field(default_factory=Recomputed)
    _noted: set[str] = field(default_factory=set, init=False)

    def goes_out(self, forms: tuple[Work, ...]) -> bool:
        """Whether devices should do this work. Its matrices need not be registered."""
        return self.place == "devices" or self.runtime.worthwhile(forms)

    def saved(self, tensor: torch.Tensor) -> Held:
        """A tensor that was saved for backward, adopted anew if it is not held."""
        return self.recomputed.take(tensor) or Held.adopt(self.runtime, tensor)

    def note(self, text: str) -> None:
        """Say once that something stays on the host, and why."""
        if text not in self._noted:
            self._noted.add(text)
            log.warning("stays on the host: %s", text)


_states: weakref.WeakKeyDictionary[nn.Module, State] = weakref.WeakKeyDictionary()


def state_of(module: nn.Module) -> State | None:
    """What a module is offloaded with, None if it is not."""
    return _states.get(module)


def state_for(runtime: Runtime, place: str) -> State:
    """The state of models that are offloaded alike; one fleet has one set of weight versions."""
    weights: Weights | None = None
    for state in list(_states.values()):
        if state.runtime is runtime:
            if state.place == place:
                return state
            weights = state.weights
    return State(runtime, place, weights or Weights(runtime))


def state_around(module: nn.Module) -> State | None:
    """What a module or the first offloaded module in it is offloaded with."""
    for part in module.modules():
        state = _states.get(part)
        if state is not None:
            return state
    return None


def is_anything_attached() -> bool:
    """Whether any module is offloaded."""
    return len(_states) > 0


def attach(module: nn.Module, state: State) -> None:
    """From now on ``module`` is offloaded with ``state``."""
    _states[module] = state


def detach(module: nn.Module) -> None:
    """From now on ``module`` is not offloaded."""
    _states.pop(module, None)
