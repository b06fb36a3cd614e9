"""What was paid and what was learned survives kills, other processes and odd text."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from forked import forked
from places import SUPPORT
from scripted_judges import ScriptedJudge, question, questions

from afarm.core.errors import StoreError
from afarm.core.judge import ChatRequest, Completion, Judgement, JudgementKey, ShownPair
from afarm.core.records import Instruction, Message
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.sqlite_database import network_file_system

NewLedger = Callable[[], Path | str]


@pytest.fixture
def ledger(new_ledger: NewLedger) -> Iterator[Ledger]:
    with Ledger(new_ledger()) as opened:
        yield opened


def answered(prompt: str, text: str = "Output (a)", price: float | None = 0.01) -> tuple[ChatRequest, str, Completion]:
    request = question(prompt)
    return request, "judge", Completion(text, 11, 3, 5, price, "stop", "model-1", 0.5, request_key(request, "judge"))


# ------------------------------------------------------------------------------------------------- what is stored


def test_an_answer_is_found_again_whole_and_the_first_one_stands(ledger: Ledger) -> None:
    first, second = answered("q"), answered("q", "Output (b)")
    unpriced = answered("r", price=None)
    ledger.resolve([first, unpriced], "run")
    ledger.resolve([second], "run")
    with Ledger(ledger.place) as again:
        found = again.completions([first[2].key, unpriced[2].key, "unknown"])
    assert found == {first[2].key: first[2], unpriced[2].key: unpriced[2]}


@pytest.mark.parametrize(
    "text",
    ["", "\x00 \u2028 ünï 😀", "half an emoji \ud83d", "a" * 10_000],
    ids=["empty", "nul", "half an emoji", "long"],
)
def test_an_answer_with_any_text_is_kept(ledger: Ledger, text: str) -> None:
    judge = ScriptedJudge()
    (bought,) = JudgeClient({"*": judge}, ledger)([question(text)])
    (kept,) = JudgeClient({"*": judge}, Ledger(ledger.place))([question(text)])
    assert len(judge.asked) == 1
    assert kept == bought
    assert kept.text == f"echo {text}".encode(errors="backslashreplace").decode().replace("\0", r"\x00")


def test_a_ledger_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "new.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE half (made)")
    release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
    release.start()
    with Ledger(tmp_path / "new.sqlite") as ledger:
        assert ledger.read("PRAGMA journal_mode") == [("wal",)]
    release.join()
    other.close()


def test_more_keys_than_sqlite_takes_in_one_query_are_looked_up(ledger: Ledger) -> None:
    answers = [answered(f"q{i}") for i in range(2345)]
    ledger.resolve(answers, "run")
    assert len(ledger.completions([c.key for _, _, c in answers])) == 2345


def test_judgements_are_recalled_by_all_of_their_key_and_the_first_stands(ledger: Ledger) -> None:
    key = JudgementKey("pool/x", "pair", "ab", 7)
    others = [
        replace(key, annotator="y"),
        replace(key, pair_id="z"),
        replace(key, order="ba"),
        replace(key, seed=8),
        replace(key, sample_index=1),
    ]
    ledger.learn({key: Judgement(0.25, "decided", "c"), others[4]: Judgement(None, "unparsed")})
    ledger.learn({key: Judgement(1.0, "decided", "d")})
    assert ledger.recall([key, *others]) == {
        key: Judgement(0.25, "decided", "c"),
        others[4]: Judgement(None, "unparsed"),
    }


def test_everything_that_is_sent_is_part_of_a_requests_key_and_what_is_not_is_not() -> None:
    shown = ShownPair("pair", Instruction("i"), "first", "second")
    base = ChatRequest("strong", (Message("user", "x"),), comparisons=(shown,))
    changed = [
        base,
        replace(base, messages=(Message("user", "y"),)),
        replace(base, messages=(Message("system", "x"),)),
        replace(base, messages=(), prompt="x"),
        replace(base, max_tokens=7),
        replace(base, temperature=0.5),
        replace(base, top_p=0.5),
        replace(base, favoured_tokens=("(a)",)),
        replace(base, penalised_tokens=("(a)",)),
        replace(base, role="light"),
        replace(base, annotator="z"),
        replace(base, seed=1),
        replace(base, sample_index=1),
        replace(base, comparisons=(replace(shown, pair_id="other"),)),
        replace(base, comparisons=(replace(shown, order="ba"),)),
    ]
    keys = [request_key(request, "judge") for request in changed]
    assert len({*keys, request_key(base, "other judge")}) == len(changed) + 1
    assert request_key(replace(base, answer_format="json"), "judge") == keys[0]


def test_log_probabilities_and_what_was_left_out_come_back_with_an_answer(ledger: Ledger) -> None:
    request, judge, plain = answered("q")
    told = replace(plain, logprobs=({"m": -0.25, "half \ud83d": -math.inf}, {}), degraded=("temperature",))
    ledger.resolve([(request, judge, told), answered("r")], "run")
    with Ledger(ledger.place) as again:
        found = again.completions([told.key, answered("r")[2].key])
    assert found == {told.key: told, answered("r")[2].key: answered("r")[2]}


def test_what_is_bought_for_a_stage_adds_up_over_runs_and_what_is_bought_for_none_is_in_no_account(
    tmp_path: Path,
) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.resolve([answered("a", price=0.25)], "one", stage="annotate/x")
        ledger.resolve([answered("b", price=0.5), answered("c", price=None)], "two", stage="annotate/x")
        ledger.resolve([answered("d", price=8.0)], "one")
        counted = ledger.stage_spend("annotate/x")
        expected = {"calls": 3, "input_tokens": 33, "output_tokens": 9, "dollars": 0.75, "unpriced_calls": 1}
        assert counted == expected
        assert ledger.stage_spend("evaluate/y")["calls"] == 0


def test_a_ledger_from_the_future_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer afarm"):
        Ledger(path)


def test_a_ledger_of_older_tables_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with Ledger(path):
        pass
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
        db.commit()
    with pytest.raises(StoreError, match="older afarm"):
        Ledger(path)


# ------------------------------------------------------------------------------------------------ budget and intents


def test_what_another_living_process_has_in_flight_is_held_until_it_is_answered_or_dead(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answered("q")
    wanted = [(answer[2].key, 0.5)]
    other = Ledger(ledger.place)
    assert ledger.claim(wanted, "run").granted
    assert other.claim(wanted, "run").held == [answer[2].key]
    monkeypatch.setattr("afarm.judging.ledger.LIVE_SECONDS", -1.0)
    assert other.claim(wanted, "run").granted == [answer[2].key], "nobody has heard of it for a while"
    ledger.resolve([answer], "run")
    assert other.claim(wanted, "run").answered == [answer[2].key]


def test_a_machine_whose_clock_is_wrong_buys_nothing_that_another_has_in_flight(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = time.time
    other = Ledger(ledger.place)
    for seconds, key in ((-10.0, "behind"), (10.0, "ahead")):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: true() + seconds)
        assert ledger.claim([(key, 0.5)], "run").granted
        monkeypatch.setattr(time, "time", true)
        assert other.claim([(key, 0.5)], "run").held == [key]


def test_a_process_is_alive_as_long_as_it_is_seen_to_write_whatever_its_clock_says(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, stepped = [1000.0], [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(ledger.database, "now", lambda: stepped[0])
    other = Ledger(ledger.place)

    def held_after(seconds: float) -> bool:
        passed[0] += seconds
        return bool(other.claim([("key", 0.5)], "run").held)

    ledger.claim([("key", 0.5)], "run")
    for _ in range(10):
        assert held_after(1.0)
        stepped[0] -= 7.0  # its clock is set back again and again
        ledger.heartbeat()
    assert held_after(1.0)
    assert held_after(3600.0), "nobody has looked meanwhile: this process was stopped, or its network was cut"
    assert [held_after(1.0) for _ in range(6)] == [True] * 4 + [False] * 2, "six seconds of looking in vain"


def test_two_processes_do_not_exceed_a_budget_together(ledger: Ledger) -> None:
    other = Ledger(ledger.place)
    first = ledger.claim([(f"a{i}", 0.25) for i in range(3)], "run", budget=1.0)
    second = other.claim([(f"b{i}", 0.25) for i in range(3)], "run", budget=1.0)
    assert (first.granted, first.over_budget) == (["a0", "a1", "a2"], False)
    assert (second.granted, second.over_budget, second.committed) == (["b0"], True, 1.0)


def test_a_budget_of_exactly_the_cost_is_enough(ledger: Ledger) -> None:
    """Prices are summed one by one in floating point, which ends above the budget."""
    assert sum([0.001] * 27) > 0.027
    claim = ledger.claim([(f"q{i}", 0.001) for i in range(28)], "run", budget=0.027)
    assert (len(claim.granted), claim.over_budget) == (27, True)
    assert ledger.reserve_again("q0", 0.001, "run", 0.028)
    assert not ledger.reserve_again("q0", 0.001, "run", 0.027)


def test_an_answer_that_was_bought_twice_is_paid_twice(ledger: Ledger) -> None:
    ledger.resolve([answered("q", price=0.25)], "run")
    Ledger(ledger.place).resolve([answered("q", "Output (b)", price=0.5)], "run")
    assert ledger.committed("run") == 0.75


def test_intents_count_against_the_budget_until_they_are_resolved(ledger: Ledger) -> None:
    answer = answered("q", price=0.02)
    ledger.claim([(answer[2].key, 0.5), ("failing", 0.25)], "run")
    assert ledger.committed("run") == pytest.approx(0.75)
    assert ledger.committed("another run") == 0
    ledger.resolve([answer], "run", free=["failing"])
    assert ledger.committed("run") == pytest.approx(0.02)


def test_what_was_in_flight_at_a_kill_stays_counted_even_if_a_process_id_comes_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.judging.ledger.LIVE_SECONDS", 0.0)
    answer = answered("q", price=0.02)
    ledger.claim([(answer[2].key, 0.5)], "run")
    # A container's first process has the same id after every restart: here, this process plays both.
    restarted = Ledger(ledger.place)
    assert restarted.claim([(answer[2].key, 0.5)], "run").granted == [answer[2].key]
    restarted.resolve([answer], "run")
    assert restarted.committed("run") == pytest.approx(0.52)


KILLED_HERE = {
    "SqliteDatabase": ["CREATE TRIGGER stop BEFORE DELETE ON in_flight BEGIN SELECT RAISE(ABORT, 'killed here'); END"],
    "PostgresDatabase": [
        "CREATE FUNCTION stop() RETURNS trigger AS $$ BEGIN RAISE 'killed here'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER stop BEFORE DELETE ON in_flight FOR EACH ROW EXECUTE FUNCTION stop()",
    ],
}


def test_an_answer_and_its_intent_change_in_one_transaction(ledger: Ledger) -> None:
    answer = answered("q", price=0.02)
    ledger.claim([(answer[2].key, 0.5)], "run")
    for statement in KILLED_HERE[type(ledger.database).__name__]:
        ledger.database.write(lambda db, statement=statement: db.execute(statement))
    with pytest.raises(StoreError, match="killed here"):
        ledger.resolve([answer], "run")
    assert Ledger(ledger.place).committed("run") == pytest.approx(0.5), "never both the answer and its intent"


# ----------------------------------------------------------------------------------------- processes and their ends


def write_many(path: str, name: str, count: int) -> None:
    with Ledger(path) as ledger:
        for start in range(0, count, 5):
            ledger.resolve([answered(f"{name} {i}") for i in range(start, start + 5)], "run")
            ledger.learn({JudgementKey(name, str(i), "ab", 0): Judgement(1.0) for i in range(start, start + 5)})


def test_processes_that_open_and_write_one_ledger_at_once_lose_nothing(new_ledger: NewLedger) -> None:
    path = str(new_ledger())
    with forked(write_many, 4) as processes:
        for process, name in zip(processes, "abcd", strict=True):
            process.begin(path, name, 200)
        for process in processes:
            process.result()
    with Ledger(path) as ledger:
        keys = [answered(f"{name} {i}")[2].key for name in "abcd" for i in range(200)]
        assert len(ledger.completions(keys)) == 800
        assert len(ledger.recall([JudgementKey(n, str(i), "ab", 0) for n in "abcd" for i in range(200)])) == 800
        assert ledger.committed("run") == pytest.approx(8.0)


IN_FLIGHT = 4
NEEDED = 40
ASKS = f"""
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from scripted_judges import ScriptedJudge, questions
from afarm.judging import ledger
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger

ledger.LIVE_SECONDS = 0.5  # here, only the dead are silent

class Hanging(ScriptedJudge):
    # Answers so many, and keeps who asks for more waiting: a kill cannot come too late.
    async def complete(self, request):
        self.seconds = 0.05 if len(self.asked) < int(sys.argv[4]) else 600
        return await super().complete(request)

judge = Hanging(price=0.01, worst=0.01, log=Path(sys.argv[3]))
ask = JudgeClient({{"*": judge}}, Ledger(sys.argv[2]), run="run", max_concurrency={IN_FLIGHT})
print([c.text for c in ask(questions({NEEDED}))])
"""


def test_a_kill_costs_at_most_what_was_in_flight_and_a_rerun_asks_only_what_is_missing(
    new_ledger: NewLedger, tmp_path: Path
) -> None:
    log, path = tmp_path / "log", new_ledger()
    command = [sys.executable, "-c", ASKS, str(SUPPORT), str(path), str(log)]
    process = subprocess.Popen([*command, str(NEEDED - 2 * IN_FLIGHT)])
    try:
        deadline = time.monotonic() + 300
        while (not log.exists() or len(log.read_text().splitlines()) < 15) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = log.read_text().splitlines()
    assert IN_FLIGHT < len(before) < NEEDED, "killed too early or too late to show anything"
    with Ledger(path) as ledger:
        stored = ledger.completions([request_key(q, "scripted") for q in questions(NEEDED)])
        assert len(before) - len(stored) <= IN_FLIGHT
        lost = len(before) - len(stored)
        assert ledger.committed("run") == pytest.approx(0.01 * (len(stored) + lost), abs=0.01 * IN_FLIGHT)
    rerun = subprocess.run([*command, str(NEEDED)], capture_output=True, text=True, check=True)
    assert rerun.stdout == f"{[f'echo q{i}' for i in range(NEEDED)]}\n"
    calls = log.read_text().splitlines()
    assert len(calls) == NEEDED + lost
    assert set(calls) == {f"q{i}" for i in range(NEEDED)}
    assert {c.text for c in stored.values()}.isdisjoint({f"echo {prompt}" for prompt in calls[len(before) :]})


# ---------------------------------------------------------------------------------------------- where it cannot be


@pytest.mark.parametrize("names", [["ledger.sqlite"], ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"]])
def test_a_ledger_that_is_deleted_under_way_comes_back_and_the_run_stops(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    key = JudgementKey("someone", "pair", "ab", 0)
    with Ledger(path) as ledger:
        ledger.learn({key: Judgement(1.0)})
        for name in names:
            (tmp_path / name).unlink()
        with pytest.raises(
            StoreError, match=r"ledger\.sqlite was deleted meanwhile: it is back\. Run the command again"
        ):
            ledger.learn({replace(key, pair_id="other"): Judgement(0.0)})
    with Ledger(path) as ledger:
        assert ledger.recall([key]) == {key: Judgement(1.0)}


def test_a_ledger_that_cannot_be_opened_or_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="ledger"):
        Ledger(tmp_path / "file" / "ledger.sqlite")
    (tmp_path / "not.sqlite").write_text("this is no data base at all" * 100)
    with pytest.raises(StoreError, match=r"ledger.*not a database"):
        Ledger(tmp_path / "not.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(StoreError, match="ledger"):
        Ledger(tmp_path / "folder.sqlite")


def test_a_damaged_ledger_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.resolve([answered(f"q{i}", "x" * 1000) for i in range(100)], "run")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="ledger"):
        Ledger(path).committed("run")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/local tmpfs rw 0 0
server:/with\\040space /with\\040space cifs rw 0 0
lustre /lus lustre rw 0 0
/dev/sdb1 /srv/fast xfs rw 0 0
server:/srv /srv nfs rw 0 0
short
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/out/ledger.sqlite", "nfs4"),
        ("/home/ledger.sqlite", "nfs4"),
        ("/home/local/ledger.sqlite", ""),
        ("/homework/ledger.sqlite", ""),
        ("/var/ledger.sqlite", ""),
        ("/with space/x/ledger.sqlite", "cifs"),
        ("/lus/ledger.sqlite", "lustre"),
        ("/srv/fast/out/ledger.sqlite", ""),
        ("/srv/slow/out/ledger.sqlite", "nfs"),
    ],
)
def test_a_network_file_system_is_told_from_the_mounts(path: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert network_file_system(Path(path), tmp_path / "mounts") == kind


def test_a_machine_without_a_list_of_mounts_is_taken_for_local(tmp_path: Path) -> None:
    assert network_file_system(tmp_path / "ledger.sqlite", tmp_path / "none") == ""
    assert network_file_system(tmp_path / "ledger.sqlite") == ""


def journal_mode(path: Path) -> str:
    return str(sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone()[0])


def test_a_network_file_system_gets_no_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(tmp_path / "local.sqlite")
    assert journal_mode(tmp_path / "local.sqlite") == "wal"
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    monkeypatch.setattr("afarm.judging.sqlite_database.NETWORK_FILE_SYSTEMS", {kind for _, _, kind, *_ in mounts})
    Ledger(tmp_path / "network.sqlite").resolve([answered("q")], "run")
    assert journal_mode(tmp_path / "network.sqlite") == "delete"
