"""`tools/same_results.py` notices what it is there to notice."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afarm.judging.ledger_schema import LEDGER_SCHEMA
from tools import same_results


def write_store(store: Path, key: str = "0123456789abcdef") -> Path:
    """Write a store with one policy, one request to a server and one judgement; `key` is the policy's."""
    model = store / "artifacts/train" / key / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    (model.parent / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "seconds": 3}\n{"step": 2, "loss": 0.25}\n')
    metadata = {"stage": "train", "label": "train ppo", "key": key, "created": len(key), "seconds": 1.5}
    (model.parent / "artifact.json").write_text(json.dumps(metadata | {"summary": {"loss": 0.25}}))
    with sqlite3.connect(store / "ledger.sqlite") as database:
        database.executescript(LEDGER_SCHEMA)
        answer = "INSERT INTO completions (key, judge, request, text, created) VALUES (?, ?, ?, ?, ?)"
        database.execute(answer, ("k1", "openai-compatible:fake@http://127.0.0.1:1/v1", '{"seed": 1}', "Output (a)", 0))
        database.execute("INSERT INTO judgements VALUES ('code', 'pair', 'ab', 1, 0, 1.0, 'decided', 'k1', 0)")
    database.close()
    return store


def differences(base: Path, head: Path) -> dict[str, str]:
    """Return the kinds of results in which two stores differ."""
    read = [same_results.read_artifacts(store) | same_results.read_ledger(store) for store in (base, head)]
    return {kind: found for kind, found in same_results.compare(*read).items() if found}


def edit(name: str, text: bytes) -> Callable[[Path], None]:
    """Return an edit of a file of the policy."""
    return lambda store: (store / "artifacts/train/fedcba9876543210" / name).write_bytes(text) and None


def execute(statement: str) -> Callable[[Path], None]:
    """Return an edit of the ledger."""

    def run(store: Path) -> None:
        with sqlite3.connect(store / "ledger.sqlite") as database:
            database.execute(statement)
        database.close()

    return run


@pytest.mark.parametrize(
    "change, kinds",
    [
        (lambda store: None, set()),
        (execute("UPDATE judgements SET annotator = 'other code', created = 5"), set()),
        (execute("UPDATE completions SET created = 5, seconds = 2, run = 'other'"), set()),
        (edit("model/model.safetensors", b"weightt"), {"artifacts train"}),
        (edit("metrics.jsonl", b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.2500000001}\n'), {"artifacts train"}),
        (edit("added.txt", b"x"), {"artifacts train"}),
        (execute("UPDATE judgements SET pair_id = 'other'"), {"pair ids", "judgement rows"}),
        (execute("UPDATE judgements SET first = 0.0"), {"judgement rows"}),
        (execute("UPDATE completions SET text = 'Output (b)'"), {"answers"}),
        (execute("DELETE FROM judgements"), {"pair ids", "judgement rows"}),
        (
            execute("INSERT INTO completions SELECT 'k2', judge, role, annotator, run, request, text, 1, 1, 0, 0, "
                    "finish_reason, model, seconds, created, logprobs, degraded FROM completions"),
            {"request keys", "answers"},
        ),
    ],
)  # fmt: skip
def test_each_change_of_a_store_is_noticed_and_named(
    tmp_path: Path, change: Callable[[Path], None], kinds: set[str]
) -> None:
    base, head = write_store(tmp_path / "base"), write_store(tmp_path / "head", "fedcba9876543210")
    change(head)
    assert differences(base, head).keys() == kinds


@pytest.mark.parametrize(
    "base, head, found",
    [
        ({"win_rate": 53.125}, {"win_rate": 53.125}, ""),
        ({"win_rate": float("nan")}, {"win_rate": float("nan")}, ""),
        ({"win_rate": 53.125}, {"win_rate": 53.125000001}, "win_rate: 53.125 in BASE, 53.125000001 in HEAD"),
        ({"n": 1}, {"n": 1.0}, "n: 1 in BASE, 1.0 in HEAD"),
        ({"rows": [1, 2]}, {"rows": [1]}, "rows > 2: only in BASE"),
        ({}, {"extra": 0}, "extra: only in HEAD"),
    ],
)
def test_the_first_difference_is_named(base: Any, head: Any, found: str) -> None:
    assert same_results.first_difference(base, head) == found


def test_labels_sources_stay_and_digests_of_code_go() -> None:
    row = {"source": "noise", "judge": "offline:gold@724f39b244cb", "artifact": "artifacts/train/0123456789abcdef"}
    assert same_results.comparable(row) == {
        "source": "noise",
        "judge": "offline:gold@KEY",
        "artifact": "artifacts/train/KEY",
    }
    assert same_results.comparable(
        {"source": "16c893130e3f", "why": "differs from a30f27c5", "created": 1.5, "seed": 42}
    ) == {"seed": 42}


def test_an_allowed_difference_passes_and_another_fails(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"artifacts train": "a: 1 in BASE, 2 in HEAD", "pair ids": ""}
    assert not same_results.print_table(found, ["artifacts base"])
    assert "artifacts train  DIFFERS  a: 1" in capsys.readouterr().out
    assert same_results.print_table(found, ["artifacts *"])
    assert "differs, allowed" in capsys.readouterr().out


def test_the_fake_judge_counts_by_key_and_answers_alike() -> None:
    judge = same_results.FakeJudge()
    url = judge.spec.partition("@")[2] + "/chat/completions"
    body = json.dumps({"messages": [{"role": "user", "content": "Which is better?"}]}).encode()
    answers = []
    for key in ("BASE", "HEAD", "HEAD"):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            answers.append(json.load(response))
    judge.shutdown()
    judge.server_close()
    assert judge.counts == {"BASE": 1, "HEAD": 2}
    assert answers[0] == answers[1] == answers[2]


def test_each_tree_has_its_own_modules_and_entry_points(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "afarm").mkdir(parents=True)
    (tree / "afarm/__init__.py").write_text("")
    (tree / "pyproject.toml").write_text(
        '[project]\nversion = "7"\n[project.entry-points.afarm]\nmine = "afarm.mine"\n'
    )
    opened = same_results.open_tree(str(tree), "HEAD", tmp_path / "work", sys.executable)
    probe = "import importlib.metadata as m; print(m.version('afarm'), [p.name for p in m.entry_points(group='afarm')])"
    command = [sys.executable, "-c", probe]
    printed = subprocess.run(command, cwd=opened.work, env=opened.environment(), capture_output=True, text=True)
    assert printed.stdout.startswith("7 ['mine'"), printed.stderr
    with pytest.raises(SystemExit, match="entry points are"):
        same_results.check_imports(opened, ["yours = afarm.yours"])
