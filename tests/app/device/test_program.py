"""A device's own program against a cloud on real Ray: in every mode, from both sides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, InternalServerError

from tandem.app.cli.server.local_ray import LocalRay, free_port
from tandem.app.device import program
from tandem.app.device.program import Running as Device
from tandem.app.device.program import running
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.wire import frames
from tandem.cluster.wire.frames import AlreadyConnected, Unauthorized
from tandem.engine import family
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.split import bundle
from tests.app.device.asking import MEMORY, QUESTIONS, listed, said
from tests.applications import deploy, deployed, until
from tests.cluster.certificate import make_certificate
from tests.cluster.proxy import proxy_to
from tests.conftest import Running
from tests.deployments.relay import relay_to

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
]

APP, LAYERS = "afar", 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two ends of the embedded target, with its adapter."""
    made = tmp_path_factory.mktemp("bundle")
    bundle.write(family.path("target"), LAYERS, made, family.adapter())
    return made


@pytest.fixture(scope="module")
def settings(application: Running, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return settings of an application with a middle and a gateway, without keys: its API is open to this machine.
    A second model starts when somebody asks for it."""
    return {
        "models": {
            "tandem": {
                "verifier": {"engine": {"kind": "torch", "model": "target"} | MEMORY},
                "drafter": {"replicas": 0},
                "middle": {"replicas": 1, "engine": {"model": "target", "first": LAYERS} | MEMORY},
            },
            "medium": {
                "verifier": {
                    "autoscaling": {"min_replicas": 0, "max_replicas": 1},
                    "engine": {"kind": "torch", "model": "medium"} | MEMORY,
                },
                "drafter": {"replicas": 0},
                "price_in": 1.0,
                "price_out": 2.0,
            },
        },
        "ledger": {"path": tmp_path_factory.mktemp("ledger") / "ledger.sqlite"},
        "gateway": {"port": free_port()},
        "endpoint": {"token": application.token},
    }


@pytest.fixture(scope="module")
def cloud(application: Running, settings: dict[str, Any]) -> Iterator[str]:
    with deployed(settings, APP, application) as address:
        yield address


@pytest.fixture
async def http(cloud: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cloud, timeout=60) as client:

        async def up() -> bool:
            ready = (await client.get("/readyz")).json()
            return ready.get("status") == "ready" and ready["middle"] == 1

        await until(up)
        yield client


@asynccontextmanager
async def device(
    http: httpx.AsyncClient, folder: Path | None, tmp_path: Path, name: str = "laptop", **options: Any
) -> AsyncIterator[Device]:
    """The program, with a key of its own. The key is revoked at the end."""
    made = (await http.post("/v1/keys", json={"name": name, "role": "device"})).raise_for_status().json()
    key = tmp_path / f"{name}.key"
    key.write_text(made["secret"])
    gateway = (await http.get("/readyz")).json()["gateway"]
    settings = DeviceProgram.model_validate(
        {
            "connect": gateway,
            "key": key,
            "listen": "127.0.0.1:0",
            "bundle": folder,
            "outer": MEMORY,
            "engine": {"kind": "torch", "model": "small"} | MEMORY,
            "split": {"wire": "float32"},
        }
        | options
    )
    try:
        async with running(settings) as started:
            assert started.uplink.up
            assert await listed(http, name), "as soon as it says that it is ready"
            yield started
    finally:
        await http.delete(f"/v1/keys/{made['id']}")


async def test_its_owner_is_answered_in_every_mode(
    http: httpx.AsyncClient, cloud: str, folder: Path, tmp_path: Path
) -> None:
    async with device(http, folder, tmp_path) as laptop:
        for question in QUESTIONS:
            whole, _ = await said(cloud, question, mode="cloud")
            for mode in ("split", "cloud", "speculative"):
                text, stats = await said(laptop.address, question, mode=mode)
                assert (text, stats["mode"]) == (whole, mode)
                assert stats["device"] == (None if mode in ("split", "cloud") else "laptop")
            assert stats["tokens"]["by_origin"]["draft"] > 0, "it drafted for the cloud"
            own, stats = await said(laptop.address, question, mode="device")
            assert (stats["mode"], set(stats["tokens"]["by_origin"])) == ("device", {"device"})
            assert own
            text, stats = await said(laptop.address, question, mode="race")
            assert (text != "", stats["mode"], stats["device"]) == (True, "race", "laptop")
            assert set(stats["tokens"]["by_origin"]) <= {"cloud", "device"}
        _, stats = await said(laptop.address, QUESTIONS[0])
        assert stats["mode"] == "split", "what nobody asked to be sent stays here"
        assert stats["modes"]["split"]["accepted"] > 0


async def test_its_owner_may_choose_the_clouds_model(
    http: httpx.AsyncClient, cloud: str, tmp_path: Path
) -> None:
    async with device(http, None, tmp_path, "chooser", cloud_model="medium") as chooser:
        whole, _ = await said(cloud, QUESTIONS[0], model="medium", mode="cloud")
        assert whole != (await said(cloud, QUESTIONS[0], mode="cloud"))[0]
        for mode in ("cloud", "speculative"):
            text, stats = await said(chooser.address, QUESTIONS[0], mode=mode)
            assert (text, stats["mode"]) == (whole, mode)
            tokens = stats["tokens"]
            server_usd = (tokens["server_in"] * 1.0 + tokens["server_out"] * 2.0) * 1e-6
            assert stats["cost"]["usd"] >= server_usd > 0
    async with device(http, None, tmp_path, "mistaken", cloud_model="medum") as mistaken:
        with pytest.raises(InternalServerError, match="does not know the model 'medum', but tandem, medium"):
            await said(mistaken.address, QUESTIONS[0], mode="cloud")


async def test_its_model_may_be_at_a_server_that_runs_already(
    http: httpx.AsyncClient, cloud: str, application: Running, tmp_path: Path
) -> None:
    """Another application is that server, with the cloud's own model."""
    address = f"{application.address}/v1"
    engine = {"kind": "openai", "base_url": address, "model": "tandem", "tokenizer": "target", "context": 512}
    async with device(http, None, tmp_path, "beside", engine=engine) as beside:
        whole, _ = await said(cloud, QUESTIONS[0], mode="cloud")
        own, stats = await said(beside.address, QUESTIONS[0], mode="device")
        assert (own, set(stats["tokens"]["by_origin"])) == (whole, {"device"})
        text, stats = await said(cloud, QUESTIONS[0], mode="speculative", device="beside", window=4)
        assert (text, stats["device"], stats["replans"]) == (whole, "beside", 0)
        drafted = stats["modes"]["speculative"]
        assert drafted["accepted"] == drafted["drafted"] > 0


async def test_the_cloud_uses_it_like_any_device(
    http: httpx.AsyncClient, cloud: str, folder: Path, tmp_path: Path
) -> None:
    async with device(http, None, tmp_path, "phone") as phone:
        (seen,) = (d for d in (await http.get("/v1/devices")).json()["data"] if d["name"] == "phone")
        assert seen["dialled_in"]
        assert seen["rtt_s"] > 0
        assert 0 < seen["prefill_token_s"] < seen["decode_token_s"]
        whole, _ = await said(cloud, QUESTIONS[0], mode="cloud")
        own, _ = await said(phone.address, QUESTIONS[0], mode="device")
        text, stats = await said(cloud, QUESTIONS[0], mode="speculative", device="phone", window=4)
        assert (text, stats["device"]) == (whole, "phone")
        assert stats["tokens"]["by_origin"]["draft"] > 0
        text, stats = await said(cloud, QUESTIONS[0], mode="device", device="phone")
        assert (text, stats["device"]) == (own, "phone")
        _, stats = await said(phone.address, QUESTIONS[0])
        assert stats["mode"] == "device", "without a part of a split model"


async def test_what_it_has_of_the_cloud_its_key_pays_for(
    http: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    """And the device's own API shows that account, as the cloud's does, whoever is said to ask."""
    async with device(http, folder, tmp_path) as laptop:
        await said(laptop.address, QUESTIONS[0], mode="split")
        (key,) = (k for k in (await http.get("/v1/keys")).json()["data"] if k["name"] == "laptop")

        async with httpx.AsyncClient(base_url=laptop.address) as own:

            async def booked() -> bool:
                account = (await own.get("/v1/account")).raise_for_status().json()
                return account["requests"] == 1 and account["server_tokens_in"] >= 32

            await until(booked)
            shown = (await own.get("/v1/account")).json()
            assert shown["account"] == key["id"]
            assert shown == (await http.get("/v1/account", params={"account": key["id"]})).json()
            assert set(shown["devices"]) == {"laptop"}
            assert (await own.get("/v1/account", params={"device": "laptop"})).json() == shown
            assert (await own.get("/v1/account", params={"account": "anonymous"})).status_code == 409


async def test_of_several_splits_it_holds_one_whose_middle_there_is(
    http: httpx.AsyncClient, cloud: str, folder: Path, tmp_path: Path
) -> None:
    """And who has another one hears at once that there is none."""
    several = tmp_path / "several"
    several.mkdir()
    (several / "two").symlink_to(folder)
    bundle.write(family.path("target"), 4, several / "four")
    async with device(http, several, tmp_path) as laptop:
        assert laptop.split is not None
        assert laptop.split.first == LAYERS
        whole, _ = await said(cloud, QUESTIONS[0], mode="cloud")
        text, stats = await said(laptop.address, QUESTIONS[0], mode="split")
        assert (text, stats["mode"]) == (whole, "split")
    async with device(http, several / "four", tmp_path, "phone") as phone:
        with pytest.raises(BadRequestError, match="no middle fits this device") as refused:
            await said(phone.address, QUESTIONS[0], mode="split")
        assert refused.value.code == "split_mismatch"


SECRET = "My name is Quillfeather, I live in Marworth. What is the town known for?"


async def test_nobody_on_its_way_learns_a_word_of_a_split_answer(
    http: httpx.AsyncClient, cloud: str, cluster: LocalRay, folder: Path, tmp_path: Path
) -> None:
    """Nor a token: not on the wire, and not in what the cloud writes down."""
    gateway = (await http.get("/readyz")).json()["gateway"]
    text = Tokenizer.load(family.path("target"))
    async with (
        relay_to(gateway, heard=True) as relay,
        device(http, folder, tmp_path, connect=relay.address) as laptop,
    ):
        answer, stats = await said(laptop.address, SECRET, mode="split")
        assert stats["mode"] == "split"
        private = [frame for stream in relay.carried for frame in heard(stream)]
        await said(laptop.address, SECRET, mode="cloud")
        everything = [frame for stream in relay.carried for frame in heard(stream)]

    assert {type(frame) for frame in private} >= {frames.Forward, frames.Hidden}
    assert not [i for frame in private for i in ids_in(frame)]
    for frame in private:
        data = bytes(frames.encode(frame))
        for said_so in (SECRET, "Quillfeather", answer, "Marworth"):
            assert said_so.encode() not in data
    # The same ears hear them in a mode that does send them.
    overheard = [text.decode(ids) for frame in everything if (ids := ids_in(frame))]
    assert any("Quillfeather" in said_so for said_so in overheard)
    assert answer in "".join(overheard)
    logs = [file for kind in ("log", "out", "err") for file in cluster.folder.rglob(f"*.{kind}")]
    written = "".join(log.read_text(errors="replace") for log in logs)
    assert "dialled in" in written
    assert "Quillfeather" not in written
    metrics = (await http.get("/metrics")).text
    assert "Quillfeather" not in metrics


def heard(stream: bytes | bytearray) -> list[Any]:
    """The frames in what one direction has carried."""
    found, at = [], 0
    while at + frames.HEADER.size <= len(stream):
        size, _ = frames.HEADER.unpack_from(stream, at)
        at += frames.HEADER.size
        if at + size > len(stream):
            break
        found.append(frames.decode(bytes(stream[at : at + size])))
        at += size
    return found


def ids_in(frame: Any) -> list[int]:
    """The tokens that a frame tells."""
    said = [getattr(frame, name, b"") for name in ("prompt", "log", "ids")]
    return [i for packed in said if packed for i in frames.unpack_ids(packed)]


LONG = 200


@pytest.mark.parametrize("how", ["reset", "silent"])
async def test_answers_outlive_a_broken_connection(
    how: str, http: httpx.AsyncClient, cloud: str, folder: Path, tmp_path: Path
) -> None:
    """The owner's answer in mode split, and the cloud's on the device, continue at no other endpoint; after seconds of
    a silent connection they do."""
    gateway = (await http.get("/readyz")).json()["gateway"]
    async with (
        proxy_to(gateway) as proxy,
        device(http, folder, tmp_path, connect=proxy.address, resume_s=60) as laptop,
    ):
        calls: list[tuple[str, str, dict[str, str]]] = [(laptop.address, "split", {})]
        if how == "reset":
            calls.append((cloud, "device", {"device": "laptop"}))
        expected = [await said(at, QUESTIONS[0], LONG, mode=mode, **more) for at, mode, more in calls]
        for (at, mode, more), (whole, _) in zip(calls, expected, strict=True):
            cuts = proxy.cuts

            def cut() -> None:
                proxy.cut(how)

            text, stats = await said(at, QUESTIONS[0], LONG, cut, mode=mode, **more)
            assert proxy.cuts > cuts
            assert (text, stats["replans"]) == (whole, 0)


async def test_a_device_that_is_not_there_may_be_asked_for_again(
    http: httpx.AsyncClient, cloud: str, folder: Path, tmp_path: Path
) -> None:
    """Requests for it are retried until its key is revoked."""
    ask = {
        "model": "tandem",
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "tandem": {"mode": "device", "device": "late"},
    }
    made = (await http.post("/v1/keys", json={"name": "late", "role": "device"})).raise_for_status().json()
    absent = await http.post("/v1/chat/completions", json=ask)
    assert (absent.status_code, int(absent.headers["retry-after"]) > 0) == (503, True)
    await http.delete(f"/v1/keys/{made['id']}")
    assert (await http.post("/v1/chat/completions", json=ask)).status_code == 404


async def test_its_owner_is_answered_when_the_cloud_has_just_died(
    http: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    """Long before the connection is given up; what needs the cloud is refused, and half an answer goes on."""
    gateway = (await http.get("/readyz")).json()["gateway"]
    async with (
        proxy_to(gateway) as proxy,
        device(http, folder, tmp_path, connect=proxy.address, resume_s=600) as laptop,
    ):
        proxy.refusing = True
        proxy.cut("silent")
        assert laptop.uplink.up, "nobody has told it"
        for mode in ("split", None):
            text, stats = await said(laptop.address, QUESTIONS[0], mode=mode)
            assert (text != "", stats["mode"]) == (True, "device")
        with pytest.raises(InternalServerError, match="does not answer") as refused:
            await said(laptop.address, QUESTIONS[0], mode="cloud")
        assert refused.value.status_code == 503
        assert laptop.uplink._connection is not None
        assert not laptop.uplink._connection.closed.done()
    async with (
        proxy_to(gateway) as proxy,
        device(http, folder, tmp_path, connect=proxy.address, resume_s=1) as laptop,
    ):

        def cut() -> None:
            proxy.refusing = True
            proxy.cut("reset")

        _, stats = await said(laptop.address, QUESTIONS[0], LONG, cut)
        assert proxy.cuts
        assert (stats["mode"], stats["replans"]) == ("device", 1)
        assert sum(stats["tokens"]["by_origin"].values()) > stats["tokens"]["by_origin"]["device"] > 0


async def test_the_next_gateway_is_found(
    http: httpx.AsyncClient, cloud: str, settings: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """Redeploy, which replaces the gateway."""
    async with device(http, folder, tmp_path, resume_s=60) as laptop:
        whole, _ = await said(laptop.address, QUESTIONS[0], mode="split")
        before = laptop.uplink._connection
        changed = settings | {"gateway": settings["gateway"] | {"resume_s": 20.0}}
        await asyncio.to_thread(deploy, changed, APP)

        async def back() -> bool:
            return (
                laptop.uplink._connection is not before and laptop.uplink.up and await listed(http, "laptop")
            )

        await until(back)
        assert (await said(laptop.address, QUESTIONS[0], mode="split"))[0] == whole
        _, stats = await said(cloud, QUESTIONS[0], mode="device", device="laptop")
        assert stats["device"] == "laptop"


async def test_a_key_is_for_one_program(http: httpx.AsyncClient, folder: Path, tmp_path: Path) -> None:
    async with device(http, None, tmp_path) as laptop:
        gateway = (await http.get("/readyz")).json()["gateway"]
        settings = DeviceProgram.model_validate(
            {
                "connect": gateway,
                "key": tmp_path / "laptop.key",
                "listen": "127.0.0.1:0",
                "engine": {"kind": "null"},
            }
        )
        async with running(settings) as second:
            with pytest.raises(AlreadyConnected, match="'laptop'"):
                await asyncio.wait_for(second.ended, 20)
        assert laptop.uplink.up
        assert not laptop.ended.done()
        assert await listed(http, "laptop")


async def test_its_own_api_speaks_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    """Also while the cloud does not answer."""
    monkeypatch.setattr(program, "KNOWN_S", 0.0)
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "laptop.key").write_text("secret")
    settings = {
        "connect": f"127.0.0.1:{unused_tcp_port}",
        "key": tmp_path / "laptop.key",
        "listen": "127.0.0.1:0",
        "engine": {"kind": "null"},
        "api": {"tls": {"certificate": certificate, "key": key}},
    }
    async with running(DeviceProgram.model_validate(settings)) as laptop:
        assert laptop.address.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with httpx.AsyncClient(base_url=laptop.address, verify=trusting) as client:
            assert (await client.get("/v1/models")).status_code == 200
            assert "<title>Tandem</title>" in (await client.get("/")).text
    settings["api"] = {"tls": {"certificate": key, "key": key}}
    with pytest.raises(ValueError, match="are no certificate and its key"):
        async with running(DeviceProgram.model_validate(settings)):
            pass


async def test_a_revoked_key_ends_it(http: httpx.AsyncClient, folder: Path, tmp_path: Path) -> None:
    async with device(http, None, tmp_path, "lost") as lost:
        keys = (await http.get("/v1/keys")).json()["data"]
        (key,) = (key for key in keys if key["name"] == "lost")
        (await http.delete(f"/v1/keys/{key['id']}")).raise_for_status()
        with pytest.raises(Unauthorized):
            await asyncio.wait_for(lost.ended, 20)

    async def gone() -> bool:
        return not await listed(http, "lost")

    await until(gone, within_s=3.0)  # sooner than one that has only fallen silent
