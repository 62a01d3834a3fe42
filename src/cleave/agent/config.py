"""The settings of an agent."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cleave.errors import ConfigError
from cleave.wire.join import JoinAddress


def default_memory_bytes() -> int:
    """A quarter of the machine's memory, but at most half of what is free now."""
    memory = psutil.virtual_memory()
    return max(1, min(int(memory.total) // 4, int(memory.available) // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What an owner decides about lending a device.

    Attributes:
        address: Where to join.
        name: For people; the machine's name unless given.
        backend: ``"auto"``, ``"torch"`` or ``"numpy"``.
        device: With torch: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        threads: Of the processor; None leaves it to the backend.
        memory_bytes: What is lent at most.
        limit_down_bytes_per_s: From the server; None for no limit.
        limit_up_bytes_per_s: To the server; None for no limit.
        may_use_battery: Whether to go on computing on battery.
        pause_file: While this file exists the agent is paused.
        resume_after_s: How long all must be well again before it goes on.
        retry: Whether to connect again and again; if not, the first failure ends the agent.
        parent_pid: The agent ends when this process, which started it, is gone; and it shows
            nothing but why it failed.
        lowest_priority: Whether all other programs of the machine come first.
        ca_file: Certificates to trust besides the system's, for a server with its own.

    Raises:
        ConfigError: If a value is out of range; it names the option.
    """

    address: JoinAddress
    name: str = field(default_factory=platform.node)
    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    memory_bytes: int = field(default_factory=default_memory_bytes)
    limit_down_bytes_per_s: float | None = None
    limit_up_bytes_per_s: float | None = None
    may_use_battery: bool = False
    pause_file: Path | None = None
    resume_after_s: float = 10.0
    retry: bool = True
    parent_pid: int | None = None
    lowest_priority: bool = True
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        positive = {
            "--memory": self.memory_bytes,
            "--threads": self.threads,
            "--limit-down": self.limit_down_bytes_per_s,
            "--limit-up": self.limit_up_bytes_per_s,
        }
        for option, value in positive.items():
            if value is not None and not value > 0:
                raise ConfigError(f"{option} is {value}: give a number above 0, or leave it out")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise ConfigError(f"no certificate file {str(self.ca_file)!r}")
