"""The page over TLS: a certificate that clients verify, and those refused before links are made."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from afarm_people.server import take_port
from label_client import LabelServer, make_rows, write_pairs

from afarm.cli import main

LINK = re.compile(r"ann: https://127\.0\.0\.1:(\d+)(/in/\S+)")
SSL = shutil.which("openssl")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a self-signed certificate, its key, that key with a password, and another's key."""
    if not SSL:
        pytest.skip("needs openssl")
    place = tmp_path_factory.mktemp("tls")
    made = f"{SSL} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 1 -subj /CN=lab"
    own = f"{made} -nodes -keyout key.pem -out cert.pem -addext subjectAltName=IP:127.0.0.1"
    other = f"{made} -nodes -keyout other.pem -out other-cert.pem"
    locked = f"{SSL} ec -in key.pem -out locked.pem -aes256 -passout pass:secret"
    for command in (own, other, locked):
        subprocess.run(command.split(), cwd=place, check=True, capture_output=True)
    return place


def test_a_client_that_verifies_the_certificate_labels_over_tls(
    certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.jsonl", make_rows(2))
    files = ["--certificate", str(certified / "cert.pem"), "--key", str(certified / "key.pem")]
    server = LabelServer("--port", "0", *files)
    try:
        found = LINK.search(server.said)
        assert found, server.said
        assert "Warning" not in server.said
        stranger = HTTPSConnection("127.0.0.1", int(found[1]), context=ssl.create_default_context(), timeout=30)
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.request("GET", found[2])
        trusting = ssl.create_default_context(cafile=str(certified / "cert.pem"))
        client = HTTPSConnection("127.0.0.1", int(found[1]), context=trusting, timeout=30)
        client.request("GET", found[2])
        answer = client.getresponse()
        answer.read()
        cookie = answer.headers["set-cookie"]
        assert (answer.status, {"Secure", "HttpOnly", "SameSite=lax"} <= set(cookie.split("; "))) == (303, True)
        for path in ("/", "/pair/1"):
            client.request("GET", path, headers={"cookie": cookie.partition(";")[0]})
            page = client.getresponse().read()
        assert b"Which response is better?" in page
    finally:
        server.kill()


def test_a_certificate_that_cannot_serve_is_named_before_a_link_is_made(
    certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cert.pem", "key.pem", "other.pem", "locked.pem"):
        shutil.copy(certified / name, tmp_path)
    (tmp_path / "text.pem").write_text("text")
    write_pairs(tmp_path / "pairs.jsonl", make_rows(2))
    wrong = {
        ("away.pem", "key.pem"): "--certificate away.pem: cannot be read (No such file",
        ("cert.pem", "away.pem"): "--key away.pem: cannot be read (No such file",
        (".", "key.pem"): "--certificate .: cannot be read (Is a directory)",
        ("text.pem", "key.pem"): "give a certificate in PEM and its own key, without a password",
        ("cert.pem", "other.pem"): "give a certificate in PEM and its own key, without a password",
        ("cert.pem", "locked.pem"): "give a certificate in PEM and its own key, without a password",
    }
    for (certificate, key), problem in wrong.items():
        command = ["label", "pairs.jsonl", "--people", "ann", "--certificate", certificate, "--key", key]
        with pytest.raises(SystemExit, match=r"^1$"):
            main(command)
        assert problem in " ".join(capsys.readouterr().err.split())
    with take_port("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            main(["label", "pairs.jsonl", "--people", "ann", "--port", str(port)])
        assert f"port {port} is taken" in capsys.readouterr().err
    server = LabelServer("--port", "0", "--host", "0.0.0.0")
    server.kill()
    assert "ann: http://0.0.0.0:" in server.said  # none of these has used up the link
    assert "Warning: without TLS, whoever is on the way can read links and labels." in server.said
