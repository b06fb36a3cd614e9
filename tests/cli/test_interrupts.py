"""Ctrl-C: the first ends a command in good order, a second at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUBBORN = """
import time
from afarm import cli
from afarm.core.errors import AfarmError

def stubborn(arguments, **options):
    told = False
    while True:
        try:
            if not told:
                told = True
                print("ready", flush=True)  # within the try: the signal may come at once
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)

cli.make_app = lambda: stubborn
cli.main(["run"])
"""


def test_a_second_interrupt_ends_what_does_not_heed_the_first() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("becomes", ["raise", 'raise ModuleNotFoundError("could not import")', "raise AfarmError('x')"])
def test_a_first_interrupt_says_how_to_go_on_with_exit_code_130(becomes: str) -> None:
    code = STUBBORN.replace('print("interrupted", flush=True)', becomes)
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said == "\nStopped. Nothing finished is lost: run the same command to go on.\n"
