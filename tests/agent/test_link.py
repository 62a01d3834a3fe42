"""Dialling fails with the stage that failed and what to look at; limits hold."""

import asyncio
import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientConnectorCertificateError, ClientConnectorDNSError, web
from aiohttp.client_reqrep import ConnectionKey
from tests.agent.lending import lending
from tests.agent.stub_server import StubServer, serving
from tests.agent.tasks import block, gemm

from cleave.agent import link
from cleave.agent.config import AgentConfig
from cleave.agent.link import LinkError, dial, explain
from cleave.errors import ConfigError
from cleave.wire.join import JoinAddress
from cleave.wire.messages import Finished


async def failure(host: str = "127.0.0.1", *, port: int, tls: bool = False) -> str:
    config = AgentConfig(address=JoinAddress(host=host, port=port, token="t", tls=tls))
    with pytest.raises(LinkError) as caught:
        async with dial(config):
            pass
    return str(caught.value)


async def test_a_server_of_another_kind_is_recognised() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        said = await failure(port=runner.addresses[0][1])
    finally:
        await runner.cleanup()
    assert said.startswith("server: 127.0.0.1:")
    assert "answers HTTP 404 but takes no devices" in said


async def test_https_to_a_server_without_tls_names_tls() -> None:
    async with serving(StubServer()) as server:
        assert (await failure(port=server.port, tls=True)).startswith("TLS: 127.0.0.1:")


async def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "CONNECT_TIMEOUT_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        said = await failure(port=silent.getsockname()[1])
    assert "does not answer: check the network and the server's firewall" in said


KEY = ConnectionKey("server.local", 7077, True, True, None, None, None)
ADDRESS = JoinAddress(host="server.local", port=7077, token="s3cret", tls=True)


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (ClientConnectorDNSError(KEY, socket.gaierror(-2, "not known")), "name: no address"),
        (
            ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("self-signed")),
            "TLS: server.local:7077: ",
        ),
        (ConnectionResetError("reset"), "TCP: server.local:7077: reset"),
    ],
)
def test_the_stage_is_named_in_one_line_without_the_token(error: Exception, stage: str) -> None:
    said = explain(error, ADDRESS)
    assert said.startswith(stage)
    assert "\n" not in said
    assert "s3cret" not in said


async def test_limits_slow_both_directions() -> None:
    n_cols = 25_000  # 100 kB each way: two pieces of 50 kB, so the second waits for 0.25 s
    wide = np.ones((1, n_cols), np.float32)
    rate = 200_000.0
    async with (
        serving(StubServer()) as server,
        lending(server.address, limit_down_bytes_per_s=rate, limit_up_bytes_per_s=rate),
    ):
        device = await server.device()
        clock = asyncio.get_running_loop().time
        started_s = clock()
        await device.send(gemm(1, block(1, 1, 1), block(2, 1, n_cols)))
        await device.fill(1, wide[:, :1], 0, 1)
        for col0 in (0, n_cols // 2):
            await device.fill_columns(2, wide, col0, col0 + n_cols // 2)
        while not isinstance((await device.next())[0], Finished):
            continue
        assert clock() - started_s > 0.4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"memory_bytes": 0}, "--memory"),
        ({"threads": 0}, "--threads"),
        ({"limit_up_bytes_per_s": -1.0}, "--limit-up"),
        ({"limit_down_bytes_per_s": float("nan")}, "--limit-down"),
        ({"ca_file": Path("no-such-file")}, "no-such-file"),
    ],
)
def test_a_setting_out_of_range_is_named(options: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        AgentConfig(address=ADDRESS, **options)  # type: ignore[arg-type]
