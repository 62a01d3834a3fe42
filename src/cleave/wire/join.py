"""The address under which a device joins: ``http://HOST:PORT/join/TOKEN``, for people to copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from cleave.errors import ConfigError

DEVICE_PATH = "/device"
JOIN_PREFIX = "/join/"
_TLS = {"http": False, "https": True, "ws": False, "wss": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAddress:
    """Where a server listens for devices, and the token that lets them in.

    Attributes:
        host: A name or address; IPv6 without brackets.
        port: TCP port.
        token: Never shown in logs.
        tls: Whether the server has a certificate.
    """

    host: str
    port: int
    token: str = field(repr=False)
    tls: bool = False

    @classmethod
    def parse(cls, text: str, token: str = "") -> JoinAddress:
        """The address that a person typed or copied.

        Args:
            text: ``http(s)://HOST:PORT/join/TOKEN``, or ``HOST:PORT`` with ``token`` given apart.
            token: Wins over one in ``text``.

        Raises:
            ConfigError: If host, port or token is missing or unusable; it shows a right one.
        """
        example = "expected http://HOST:PORT/join/TOKEN, as the server prints it"
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"join address: {error}; {example}") from None
        if parts.scheme not in _TLS:
            raise ConfigError(f"join address begins with {parts.scheme!r}; {example}")
        if not host:
            raise ConfigError(f"join address has no host; {example}")
        tls = _TLS[parts.scheme]
        if port is None:
            if "://" not in text:
                raise ConfigError(f"join address {host!r} has no port; {example}")
            port = 443 if tls else 80
        if parts.path.startswith(JOIN_PREFIX):
            token = token or unquote(parts.path[len(JOIN_PREFIX) :].strip("/"))
        if not token:
            raise ConfigError(f"join address {host}:{port} has no token; {example}, or add --token")
        return cls(host=host, port=port, token=token, tls=tls)

    @property
    def authority(self) -> str:
        """``HOST:PORT``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """What a person passes to ``cleave join``; it contains the token."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.authority}{JOIN_PREFIX}{quote(self.token, safe='')}"

    @property
    def websocket_url(self) -> str:
        """What an agent dials; the token travels in its first message instead."""
        scheme = "wss" if self.tls else "ws"
        return f"{scheme}://{self.authority}{DEVICE_PATH}"
