"""`--ledger postgresql://…` and `afarm ledger-copy`: the answers of judges on a server, whoever runs the stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from light_plugin import CountingJudge
from postgres_server import PostgresServer
from purchases import purchases
from said import Afarm

PASSWORD = "hunter2"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database, by a URL with a password, which the socket does not ask for."""
    login, at, rest = postgres.database().partition("@")
    return f"{login}:{PASSWORD}{at}{rest}"


def test_every_command_that_needs_the_ledger_takes_one_on_a_server(
    afarm: Afarm, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ["--ledger", url]
    monkeypatch.setattr("sys.argv", ["afarm", "run", *ledger])  # which the record of a run quotes
    assert "no ledger at postgresql://" in afarm("ledger", *ledger).err
    said = [
        afarm("run", "--recipe", "light.yaml", "--json", *ledger),
        afarm("ledger", "--json", *ledger),
        afarm("cost", "--recipe", "light.yaml", "--method", "direct", "--json", *ledger),
        afarm("ledger", "--export", "answers.jsonl", *ledger),
        afarm("train", "--recipe", "light.yaml", "--method", "direct", *ledger),
        afarm("ledger", *ledger),
    ]
    assert [one.code for one in said] == [0] * len(said), [one.err for one in said]
    run, accounts, *_ = said
    assert run.json["spend"]["calls"] == sum(row["answers"] for row in accounts.json["by"]["run"]) > 0
    assert accounts.json["by"]["day"][0]["name"].count("-") == 2
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [answer["created"] for answer in answers] == sorted(answer["created"] for answer in answers)
    assert not list(tmp_path.rglob("*.sqlite")), "no other ledger is made"
    everything = [one.out + one.err for one in said]
    everything += [path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".json", ".html", ".jsonl")]
    assert not any(PASSWORD in text for text in everything)
    assert f"--ledger '{url.replace(f':{PASSWORD}', '')}'" in run.json["command"]


def test_answers_of_one_directory_are_not_bought_again_for_another(afarm: Afarm, url: str) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--ledger", url, "--output-dir", "one").code == 0
    asked = CountingJudge.asked
    assert afarm("run", "--recipe", "light.yaml", "--ledger", url, "--output-dir", "other").code == 0
    assert CountingJudge.asked == asked
    shutil.rmtree("other/artifacts/annotate")
    forgotten = afarm("run", "--recipe", "light.yaml", "--output-dir", "other")
    assert "other/ledger.sqlite is missing or empty" in forgotten.err
    assert "name theirs with --ledger" in forgotten.err


def test_a_ledger_in_a_file_moves_to_a_server_with_all_that_was_paid(afarm: Afarm, url: str) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--output-dir", "one").code == 0
    asked, shown = CountingJudge.asked, url.replace(f":{PASSWORD}", "")
    moved = afarm("ledger-copy", url, "--output-dir", "one")
    assert moved.code == 0, moved.err
    assert "answers, with their judgements and all spending, are copied to" in moved.err
    assert f"from now on give --ledger '{shown}'" in moved.err
    assert PASSWORD not in moved.err + moved.out
    assert afarm("run", "--recipe", "light.yaml", "--output-dir", "other", "--ledger", url).code == 0
    assert CountingJudge.asked == asked, "no answer is bought again"
    again = afarm("ledger-copy", url, "--output-dir", "one")
    assert again.code == 1
    assert "a copy would count twice" in again.err


def test_a_ledger_that_is_not_there_is_not_copied(afarm: Afarm, tmp_path: Path) -> None:
    for place, said in (
        (["--output-dir", "none"], "no ledger in none"),
        (["--ledger", "gone.sqlite"], "at gone.sqlite"),
    ):
        refused = afarm("ledger-copy", "copy.sqlite", *place)
        assert refused.code == 1
        assert said in refused.err
    assert not list(tmp_path.rglob("*.sqlite"))


def test_stages_side_by_side_share_a_ledger_on_a_server(afarm: Afarm, url: str, own_site: Path, tmp_path: Path) -> None:
    (own_site / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_worker\n")
    said = afarm(
        *("compare", "--recipe", "light.yaml", "--methods", "nudge,direct", "--json"),
        *("--launcher", "local:2", "--ledger", url),
    )
    assert said.code == 0, said.err
    assert not list(tmp_path.rglob("*.sqlite"))
    assert PASSWORD not in said.out + said.err
    paid, answers = purchases(url)
    assert paid == answers > 0
