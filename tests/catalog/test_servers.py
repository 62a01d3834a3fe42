"""Servers by their usual sizes."""

import pytest

from cleave.catalog.servers import TLS_PROCESS_BYTES_PER_S, server
from cleave.errors import ConfigError


def test_a_gigabit_card_carries_what_was_measured() -> None:
    host = server(nic_gbit_per_s=1, memory_gb=128)
    assert host.egress_bytes_per_s == pytest.approx(940e6 / 8)
    assert host.memory_bytes == 128e9
    assert host.memory_bytes_per_s == 2 * 30e9
    assert host.flops_per_s == 16 * 1e11


def test_encryption_binds_before_a_fast_card() -> None:
    host = server(nic_gbit_per_s=10, memory_gb=1, has_tls=True)
    assert host.egress_bytes_per_s == TLS_PROCESS_BYTES_PER_S


def test_a_server_without_a_card_is_refused() -> None:
    with pytest.raises(ConfigError, match="server: nic_bytes_per_s is 0"):
        server(nic_gbit_per_s=0, memory_gb=1)
