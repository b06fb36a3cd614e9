"""moto's S3 for tests: the command that starts it, and what tells clients where it is."""

from __future__ import annotations

import os
import shutil

import pytest


def moto_command(address: str, port: int) -> list[str]:
    """Return the command that starts a server; without moto, the test is skipped."""
    command = os.environ.get("MOTO_SERVER") or shutil.which("moto_server")
    if not command:
        pytest.skip("no moto_server: `make .venv/.moto`, or name it in MOTO_SERVER")
    return [command, "-H", address, "-p", str(port)]


def s3_environment(address: str, port: int) -> dict[str, str]:
    """Return the environment of clients of a server."""
    return {
        "AWS_ENDPOINT_URL": f"http://{address}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
