"""Servers by their usual sizes: network card, memory, and what the server process moves."""

from __future__ import annotations

from cleave.core.fleet import Server

GOODPUT = 0.94
"""Of an Ethernet card's rate, after headers: 940 of 1,000 Mbit/s (``lan-gigabit``, measured)."""

PROCESS_BYTES_PER_S = 2.4e9
"""What one server process moves each way without TLS.

Measured on loopback with WebSocket messages of 1 MB, uvloop and large allocations reused: 3.5 to
4.7 GB/s down, 2.4 to 4.1 GB/s up on two cores. The lowest of them stands for both ways.
"""

TLS_PROCESS_BYTES_PER_S = 0.4e9
"""The same with TLS: 0.4 to 1.2 GB/s measured; down and up share the process, hence the lowest."""

CHANNEL_BYTES_PER_S = 30e9
"""What a memory channel sustains: 80 % of DDR5-4800's 38.4 GB/s. An estimate."""

CORE_FLOPS_PER_S = 1e11
"""fp32 matrix products on one core with AVX-512, measured: 93 to 101 GFLOP/s."""


def server(
    *,
    nic_gbit_per_s: float,
    memory_gb: float,
    n_cores: int = 16,
    n_memory_channels: int = 2,
    has_tls: bool = False,
) -> Server:
    """A server of a usual size, with the one server process that Cleave has.

    Args:
        nic_gbit_per_s: Its network card's nominal rate; `GOODPUT` of it is used.
        memory_gb: Its memory, 10^9 bytes each.
        n_cores: Cores, for what stays on the host.
        n_memory_channels: 2 in a desktop, 8 or 12 in a server.
        has_tls: Whether connections are encrypted in the server process.

    Raises:
        ConfigError: If a value is not above zero.
    """
    return Server(
        nic_bytes_per_s=nic_gbit_per_s * 1e9 / 8 * GOODPUT,
        process_bytes_per_s=TLS_PROCESS_BYTES_PER_S if has_tls else PROCESS_BYTES_PER_S,
        memory_bytes=memory_gb * 1e9,
        memory_bytes_per_s=n_memory_channels * CHANNEL_BYTES_PER_S,
        flops_per_s=n_cores * CORE_FLOPS_PER_S,
    )
