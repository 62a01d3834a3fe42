"""Addresses of this machine, and tokens."""

from __future__ import annotations

import ipaddress
import secrets
import socket

import psutil


def new_token() -> str:
    """A join token that cannot be guessed."""
    return secrets.token_urlsafe(12)


def addresses() -> list[str]:
    """IPv4 addresses under which other machines may reach this one; loopback last."""
    found = [
        address.address
        for name, entries in psutil.net_if_addrs().items()
        for address in entries
        if address.family is socket.AF_INET and _is_up(name)
    ]
    return sorted(set(found), key=lambda text: (ipaddress.ip_address(text).is_loopback, text))


def _is_up(interface: str) -> bool:
    stats = psutil.net_if_stats().get(interface)
    return stats is None or stats.isup
