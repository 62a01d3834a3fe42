"""Join addresses: what people copy is read, what is missing is named, the token stays hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave.errors import ConfigError
from cleave.wire.join import JoinAddress


def test_the_printed_address_and_host_with_token_mean_the_same() -> None:
    printed = JoinAddress.parse("http://server.local:7077/join/s3cret")
    assert printed == JoinAddress(host="server.local", port=7077, token="s3cret")
    assert printed == JoinAddress.parse("server.local:7077", token="s3cret")
    assert printed.websocket_url == "ws://server.local:7077/device"


def test_https_is_dialled_with_tls_on_its_own_port() -> None:
    address = JoinAddress.parse("https://train.example/join/t")
    assert (address.port, address.tls) == (443, True)
    assert address.websocket_url == "wss://train.example:443/device"


def test_ipv6_keeps_its_brackets() -> None:
    address = JoinAddress.parse("[fe80::1]:7077", token="t")
    assert address.url == "http://[fe80::1]:7077/join/t"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no host"),
        ("server", "no port"),
        ("server:99999", "range"),
        ("server:http", "join address"),
        ("server:7077", "no token"),
        ("http://server:7077/join/", "no token"),
        ("ftp://server:7077/join/t", "ftp"),
        ("http://:7077/join/t", "no host"),
    ],
)
def test_what_is_missing_is_named_with_an_example(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        JoinAddress.parse(text)
    assert "http://HOST:PORT/join/TOKEN" in str(caught.value)


@given(st.text(max_size=60), st.text(max_size=5))
def test_any_text_is_an_address_or_a_config_error(text: str, token: str) -> None:
    try:
        JoinAddress.parse(text, token)
    except ConfigError:
        return


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in repr(JoinAddress.parse("server:1/join/s3cret"))


@given(st.text(min_size=1, max_size=20))
def test_any_token_survives_the_address(token: str) -> None:
    address = JoinAddress(host="h", port=1, token=token)
    assert JoinAddress.parse(address.url) == address
