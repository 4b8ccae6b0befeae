"""API keys and TLS: clients send what the server requires, and each refusal has a class."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import treering
from treering import new
from treering._binary import find_binary

from .conftest import run


def make_key(folder: Path, name: str, role: str) -> str:
    command = [str(find_binary()), "keys", "create", name, "--role", role, "--data", str(folder)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return made.stdout.strip()


# Each refusal because of a missing, malformed or insufficient key must have its own class.
def test_a_key_says_what_may_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREERING_TOKEN", raising=False)
    with treering.local(tmp_path / "store") as db:
        db.create("Before the first key")
        agent = make_key(tmp_path / "store", "agent", "writer")
        reader = make_key(tmp_path / "store", "reader", "reader:other")
        with pytest.raises(treering.KeyMissing) as refused:
            db.create("After it")
        assert isinstance(refused.value, treering.Unauthenticated)
        assert "TREERING_TOKEN" in refused.value.advice

        with treering.connect(db.address, token=agent, actor="somebody else") as mine:
            conv = mine.create("With a key")
            conv.append([new.tool_call("call_1", "rm", {}, needs_approval=True)])
            assert [event.actor for event in conv.events()] == ["agent", "agent"]
            [call] = mine.pending()
            with pytest.raises(treering.RoleMissing) as denied:
                mine.approve(call, by="ada")
            assert denied.value.role == "approver"
            assert mine.command("ls")[0]["title"] == "With a key"
        with treering.connect(db.address, token=reader) as other:
            with pytest.raises(treering.PermissionDenied):
                other.create("Not here")
        with treering.connect(db.address, token=agent[:-1]) as mistyped:
            with pytest.raises(treering.KeyMalformed):
                mistyped.create("Not with this")

        monkeypatch.setenv("TREERING_TOKEN", agent)
        with treering.connect(db.address) as by_environment:
            by_environment.create("By the environment")

        async def for_asyncio() -> None:
            async with treering.aio.connect(db.address, token=agent) as same:
                await same.create("The same")

        run(for_asyncio())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make a certificate")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    leaf = "basicConstraints=critical,CA:FALSE"
    made = [*command.split(), "-subj", "/CN=localhost", "-addext", names, "-addext", leaf]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*made, *files], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "cert.pem"


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    folder = certificate.parent
    tls = ["--tls-cert", str(certificate), "--tls-key", str(folder / "key.pem")]
    store = str(folder / "store")
    command = [str(find_binary()), "serve", "--data", store, "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *tls], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().split()[-1]
        process.kill()


# A connection to an https address must use TLS, and accept only certificates of the given CA.
def test_https_is_tls(secure: str, certificate: Path) -> None:
    assert secure.startswith("https://")
    token = make_key(certificate.parent / "store", "agent", "writer")
    with treering.connect(secure, ca=certificate, token=token) as db:
        db.create("Encrypted")
        assert db.command("ls")[0]["title"] == "Encrypted"
    with treering.connect(secure, token=token, timeout=2) as stranger:
        with pytest.raises(treering.TreeringError):
            stranger.create("With a CA that has not signed it")
