"""Compare what two versions of afarm compute: `python tools/same_results.py BASE HEAD`.

BASE and HEAD are git revisions, or directories that are used as they are. Both do the same small work on the toy recipe
with one thread and seed 42: every method, `annotate`, `evaluate`, `judge fit`, and a judge behind a fake OpenAI server.
Then HEAD's PPO is killed after its first checkpoint and goes on, and HEAD opens a copy of BASE's store: its models must
load, and no answer may be bought again. The table says `same` or `DIFFERS` for each kind of result.

Times, artifact keys, versions and digests of code are not compared: see `IGNORED` and `KEYS`. This file imports nothing
of afarm, since what it guards may be what changed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

METHODS = ["sft", "feedme", "reward_conditioning", "dpo", "best_of_n", "expert_iteration", "ppo", "quark"]
QUICK_METHODS = ["sft", "dpo", "ppo"]

ROWS = "{sft: 512, preference: 256, unlabeled: 256, validation: 32, evaluation: 96}"
ON_POLICY = "rollout_batch_size=64", "mini_batch_size=32", "save_steps=2"
SIZES = [f"rows={ROWS}", "best_of_n.n=4", "ppo.total_steps=8", "quark.total_steps=4"]
SIZES += [f"{method}.{size}" for method in ("ppo", "quark") for size in ON_POLICY]
TOY = ["--recipe=toy", "--seed=42", "--json", *(f"--set={size}" for size in SIZES)]
STORE = ["--output-dir", "store"]

PRICE = "1000000/2000000"
"""Dollars per million tokens of the fake judge: sums of whole dollars are the same in any order."""

IGNORED = {
    *("created", "finished", "seconds", "memory", "this_time", "why"),  # times, and why a stage was run this time
    *("key", "completion"),  # keys of artifacts and answers
    *("afarm_version", "version", "versions"),
}
"""Fields that no comparison reads, in whatever file they stand."""

KEYS = re.compile(r"(?<=@)[0-9a-f]{12}\b|(?<=-seed42-)[0-9a-f]{6}\b|\b[0-9a-f]{16}\b")
"""Within texts: digests of code in judges' identities, digests in runs' names, and keys of artifacts."""

META = "artifact.json"
METADATA_FIELDS = "stage", "label", "spend", "summary"
"""What is compared of `artifact.json`; the rest is keys, times, sizes and versions."""

Results = dict[str, Any]
"""Results by kind, such as "artifacts train"; values are what JSON can hold."""


# --- The two trees ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A version of afarm, and the folder in which it works.

    `name` is also its API key, by which requests are counted; `metadata` is a folder with its entry points.
    """

    name: str
    source: Path
    metadata: Path
    work: Path
    python: str

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python finds this version before the installed one."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        offline = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        own = {"PYTHONPATH": f"{self.metadata}{os.pathsep}{self.source}", "OPENAI_COMPATIBLE_API_KEY": self.name}
        return os.environ | threads | offline | own | {"COLUMNS": "120"}

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start `afarm` with these arguments; what it writes goes into the files `stdout` and `stderr`."""
        command = [self.python, "-m", "afarm", *arguments]
        with (self.work / "stdout").open("w") as out, (self.work / "stderr").open("w") as err:
            return subprocess.Popen(
                command, cwd=self.work, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def afarm(self, title: str, arguments: list[str]) -> Results:
        """Run `afarm` and return its output as `metrics TITLE`. Raises `SystemExit` if BASE fails."""
        started = time.monotonic()
        failed = self.start(arguments).wait()
        print(f"  {self.name}: {title} ({time.monotonic() - started:.0f} s)", file=sys.stderr)
        if not failed:
            return {f"metrics {title}": comparable(parse_json((self.work / "stdout").read_text()))}
        error = (self.work / "stderr").read_text()
        message = f"{self.name}: `afarm {' '.join(arguments)}` failed:\n{error[-2000:]}"
        if self.name == "BASE":
            raise SystemExit(message)
        print(message, file=sys.stderr)
        return {f"metrics {title}": f"failed: {error.strip().splitlines()[-1:]}"}


def open_tree(given: str, name: str, folder: Path, python: str) -> Tree:
    """Return the tree of a directory, or of a git revision, which is unpacked below `folder`."""
    source = Path(given).resolve()
    if not source.is_dir():
        repository = Path(__file__).resolve().parent.parent
        archive = subprocess.run(["git", "archive", given], cwd=repository, stdout=subprocess.PIPE, check=True).stdout
        source = folder / f"{name}-source"
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(source, filter="data")
    tree = Tree(name, source, folder / f"{name}-metadata", folder / name, python)
    tree.work.mkdir(parents=True)
    check_imports(tree, write_metadata(tree))
    return tree


def write_metadata(tree: Tree) -> list[str]:
    """Write a distribution's metadata from the tree's `pyproject.toml`, and return its entry points."""
    project = tomllib.loads((tree.source / "pyproject.toml").read_text())["project"]
    version = project.get("version", "0")
    points = sorted(f"{name} = {value}" for name, value in project["entry-points"]["afarm"].items())
    folder = tree.metadata / f"afarm-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: afarm\nVersion: {version}\n")
    (folder / "top_level.txt").write_text("afarm\nafarm_plugins\n")
    (folder / "entry_points.txt").write_text("\n".join(["[afarm]", *points, ""]))
    return points


def check_imports(tree: Tree, points: list[str]) -> None:
    """Raise `SystemExit` unless Python finds the tree's own modules and entry points, each once."""
    probe = (
        "import afarm, importlib.metadata as m, json; found = m.entry_points(group='afarm');"
        "print(json.dumps([afarm.__file__, sorted(f'{p.name} = {p.value}' for p in found if p.dist.name == 'afarm')]))"
    )
    command = [tree.python, "-c", probe]
    printed = subprocess.run(command, cwd=tree.work, env=tree.environment(), stdout=subprocess.PIPE, check=True).stdout
    imported, found = json.loads(printed)
    if not Path(imported).resolve().is_relative_to(tree.source.resolve()):
        raise SystemExit(f"{tree.name}: afarm was imported from {imported}, not from {tree.source}")
    if found != points:
        raise SystemExit(f"{tree.name}: entry points are {found}, not {points}")


# --- The fake judge ----------------------------------------------------------------------------------------------


def fake_answer(text: str) -> str:
    """Answer an annotator's prompt in its format, by a digest of it. One in 16 is unreadable."""
    draw = int.from_bytes(hashlib.sha256(text.encode()).digest())
    if draw % 16 == 0:
        return "I cannot decide."
    numbers = re.findall(r"Comparison (\d+)", text)
    firsts = [bool(draw >> (8 + i) & 1) for i in range(int(numbers[-1]) if numbers else 1)]
    if "JSON" in text:
        verdicts = [{"index": i, "explanation": "It is.", "first_is_better": f} for i, f in enumerate(firsts, 1)]
        return json.dumps(verdicts)
    labels = ["Output (a)" if first else "Output (b)" for first in firsts]
    return "\n".join(f"{i}. {label}" for i, label in enumerate(labels, 1)) if numbers else labels[0]


class FakeJudge(ThreadingHTTPServer):
    """An OpenAI-compatible server on 127.0.0.1 that counts requests by API key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeJudgeHandler)
        self.counts: Counter[str] = Counter()
        self.counting = threading.Lock()
        self.spec = f"openai-compatible:fake@http://127.0.0.1:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def command(self) -> list[str]:
        """Return the command that asks this server for labels and judgements."""
        price = f"{self.spec}={PRICE}"
        return ["run", "--method", "dpo", "--judge", self.spec, "--price", price, "--allow-degraded", *TOY, *STORE]


class FakeJudgeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeJudge

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.counting:
            self.server.counts[self.headers["Authorization"].removeprefix("Bearer ")] += 1
        text = "\n".join(str(message["content"]) for message in asked["messages"])
        answer = fake_answer(text)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        usage = {"prompt_tokens": len(text), "completion_tokens": len(answer), "total_tokens": len(text) + len(answer)}
        head = {"id": "fake", "object": "chat.completion", "created": 0, "model": "fake"}
        body = json.dumps(head | {"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


# --- Reading results -------------------------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """Leave out of JSON what `IGNORED` and `KEYS` name, and each "source" that is a digest of code."""
    if isinstance(value, Mapping):
        kept = {name: inner for name, inner in value.items() if name not in IGNORED}
        if re.fullmatch("[0-9a-f]+", str(kept.get("source"))):
            del kept["source"]
        return {name: comparable(inner) for name, inner in kept.items()}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return KEYS.sub("KEY", value) if isinstance(value, str) else value


def parse_json(text: str) -> Any:
    """Parse JSON or, if it is none, JSON lines."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def read_file(path: Path) -> Any:
    """Read a file for comparison: JSON without what is ignored, of any other file its digest."""
    if path.name == META:
        metadata = json.loads(path.read_text())
        return comparable({name: metadata.get(name) for name in METADATA_FIELDS})
    if path.suffix in (".json", ".jsonl"):
        return comparable(parse_json(path.read_text()))
    return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def read_folder(folder: Path) -> dict[str, Any]:
    """Map the files below a folder, without hidden ones, to what is compared of each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): read_file(path) for path in files}


def find_artifacts(store: Path) -> list[tuple[str, str, Path]]:
    """Return the stage, the label and the folder of finished artifacts, oldest first."""
    found = [(json.loads(path.read_text()), path.parent) for path in store.glob(f"artifacts/*/*/{META}")]
    found.sort(key=lambda one: one[0]["created"])
    return [(metadata["stage"], metadata["label"], folder) for metadata, folder in found]


def read_artifacts(store: Path) -> Results:
    """Return the contents of artifacts by stage, under their label and their order among those with it."""
    results: Results = {}
    for stage, label, folder in find_artifacts(store):
        of_stage = results.setdefault(f"artifacts {stage}", {})
        order = sum(name.startswith(f"{label} #") for name in of_stage) + 1
        of_stage[f"{label} #{order}"] = read_folder(folder)
    return results


def read_ledger(store: Path) -> Results:
    """Return request keys, answers, pair ids and judgements.

    The keys of annotators, and of requests to judges on this machine, hold digests of code. So of keys only those of
    requests to the fake server are compared, and a judgement is compared with what was asked for it.
    """
    database = sqlite3.connect(f"file:{store / 'ledger.sqlite'}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    answers, bought, judgements = {}, [], []
    for row in map(dict, database.execute("SELECT * FROM completions")):
        answers[row["key"]] = row | {"run": "", "request": parse_json(row["request"])}
        if row["judge"].startswith("openai-compatible:"):
            bought.append(row["key"])
    for row in map(dict, database.execute("SELECT * FROM judgements")):
        request = answers[row["completion"]]["request"] if row["completion"] else None
        judgements.append(row | {"annotator": "", "request": request})
    database.close()
    return {
        "request keys": sorted(bought),
        "answers": sort_rows(answers.values()),
        "pair ids": sorted({row["pair_id"] for row in judgements}),
        "judgement rows": sort_rows(judgements),
    }


def sort_rows(rows: Iterable[Any]) -> list[Any]:
    """Sort rows, less what is ignored, by their JSON."""
    return sorted(map(comparable, rows), key=lambda row: json.dumps(row, sort_keys=True))


# --- Comparing ---------------------------------------------------------------------------------------------------


def first_difference(base: Any, head: Any, where: str = "") -> str:
    """Describe the first place in which two JSON values differ; empty if they are the same."""
    if isinstance(base, list) and isinstance(head, list):
        base, head = dict(enumerate(base, 1)), dict(enumerate(head, 1))
    if isinstance(base, Mapping) and isinstance(head, Mapping):
        for name in base | head:
            inner = f"{where} > {name}" if where else str(name)
            if name not in head or name not in base:
                return f"{inner}: only in {'BASE' if name in base else 'HEAD'}"
            if found := first_difference(base[name], head[name], inner):
                return found
        return ""
    # As JSON, NaN is the same as NaN, and 1 is neither 1.0 nor true.
    same = json.dumps(base) == json.dumps(head)
    return "" if same else f"{where}: {str(base)[:90]} in BASE, {str(head)[:90]} in HEAD"


def compare(base: Results, head: Results) -> dict[str, str]:
    """Map each kind of result to its first difference; empty if there is none."""
    missing = "no such results"
    return {kind: first_difference(base.get(kind, missing), head.get(kind, missing)) for kind in base | head}


def print_table(differences: Mapping[str, str], allowed: list[str]) -> bool:
    """Print a line for each kind of result; return True if all are the same, or allowed to differ."""
    width = max(map(len, differences))
    differs = {kind for kind, difference in differences.items() if difference}
    accepted = {kind for kind in differs if any(fnmatch(kind, pattern) for pattern in allowed)}
    for kind, difference in differences.items():
        state = "same" if not difference else "differs, allowed" if kind in accepted else "DIFFERS"
        print(f"{kind:<{width}}  {state}  {difference}".rstrip())
    return differs == accepted


# --- The work ----------------------------------------------------------------------------------------------------


def write_labels(path: Path) -> None:
    """Write 240 labelled pairs for `judge fit`; the longer output wins three times in four."""
    rows = []
    for i in range(240):
        one, other = "river " * (3 + i * 5 % 11), "list of words " * (3 + i * 7 % 11)
        longer = 1 if len(one) > len(other) else 2
        row = {"instruction": f"Say something about {i // 2}.", "output_1": one, "output_2": other}
        rows.append(row | {"preference": longer if i % 4 else 3 - longer})
    path.write_text(json.dumps(rows))


def do_work(tree: Tree, judge: FakeJudge, methods: list[str]) -> Results:
    """Run all commands in a tree, and read what they made."""
    # One process trains all methods, which saves seven imports of torch; `run` then finds them and prints.
    results = tree.afarm("compare", ["compare", "--methods", ",".join(methods), *TOY, *STORE])
    for method in methods:
        results |= tree.afarm(f"run {method}", ["run", "--method", method, *TOY, *STORE])
    thrice = ["--annotator", "chatgpt_1", "--both-orders", "--votes", "3"]
    results |= tree.afarm("annotate", ["annotate", *thrice, *TOY, *STORE])
    judged = ["--method", "dpo", "--set", "evaluate.annotator=gpt4_4", "--set", "evaluate.evaluators=[win_rate, gold]"]
    results |= tree.afarm("evaluate", ["evaluate", *judged, *TOY, *STORE])
    results |= tree.afarm("fake judge", judge.command())
    write_labels(tree.work / "labels.json")
    results |= tree.afarm("judge fit", ["judge", "fit", "labels.json", "--out", "fitted", "--seed", "42", "--json"])
    results |= tree.afarm("fitted annotator", ["annotate", "--annotator", "fitted:fitted", *TOY, *STORE])
    store = tree.work / "store"
    return results | read_artifacts(store) | read_ledger(store) | {"judge fit": read_folder(tree.work / "fitted")}


def kill_and_resume(head: Tree) -> dict[str, Any]:
    """Kill PPO after its first checkpoint, give the command again, and return the policy's files."""
    tree = replace(head, name="KILLED", work=head.work.with_name("KILLED"))
    shutil.copytree(head.work, tree.work)
    for folder in ppo_folders(tree):
        shutil.rmtree(folder)
    command = ["run", "--method", "ppo", *TOY, *STORE]
    process = tree.start(command)
    checkpoints = "store/artifacts/train/*/checkpoints/step-*"
    while process.poll() is None and not any(tree.work.glob(checkpoints)):
        time.sleep(0.005)
    process.kill()
    process.wait()
    if not any(tree.work.glob(checkpoints)):
        return {"error": f"PPO was not killed after a checkpoint: {(tree.work / 'stderr').read_text()[-300:]}"}
    tree.afarm("resume ppo", command)
    return trained_ppo(tree)


def ppo_folders(tree: Tree) -> list[Path]:
    """Return the folders of PPO's policies in a tree's store."""
    return [folder for _, label, folder in find_artifacts(tree.work / "store") if label == "train ppo"]


def trained_ppo(tree: Tree) -> dict[str, Any]:
    """Return the files of PPO's policy, but for its metadata."""
    return {name: file for folder in ppo_folders(tree) for name, file in read_folder(folder).items() if name != META}


def open_stored(tree: Tree, methods: list[str]) -> Results:
    """Export the policies of a store, which another version may have made, sample and score with them."""
    store = tree.work / "store"
    stored = {label: folder.relative_to(tree.work) / "model" for _, label, folder in find_artifacts(store)}
    results = tree.afarm("verify", ["artifacts", "verify", "--json", *STORE])
    for method in methods:
        run = min(store.glob(f"runs/toy-{method}-pool-*")).name
        results |= tree.afarm(f"export {method}", ["export", run, f"exported/{method}", "--json", *STORE])
    models = [
        f"--model={stored['train ppo']}",
        f"--reward-model=classifier:{stored['fit-reward']}",
        "--set=start=model",
    ]
    command = ["run", "--method", "best_of_n", *models, *TOY, "--output-dir", "reopened"]
    results |= tree.afarm("stored models", command) | read_artifacts(tree.work / "reopened")
    exported = read_folder(tree.work / "exported").items()
    results["exports"] = {name: file for name, file in exported if not name.endswith(".md")}
    return {f"BASE's store: {kind}": value for kind, value in results.items()}


def run_both(base: Tree, head: Tree, methods: list[str], jobs: int) -> dict[str, str]:
    """Do all the work in both trees, and map each kind of result to its first difference."""
    judge = FakeJudge()
    with ThreadPoolExecutor(jobs) as pool:
        works = [pool.submit(do_work, tree, judge, methods) for tree in (base, head)]
        by_base, by_head = (work.result() for work in works)
        by_base["requests to the server"] = judge.counts["BASE"]
        by_head["requests to the server"] = judge.counts["HEAD"]
        opened = replace(head, name="OPENED", work=base.work.with_name("OPENED"))
        shutil.copytree(base.work, opened.work)
        exports = [method for method in methods if method in ("ppo", "best_of_n", "quark", "reward_conditioning")]
        uses = [pool.submit(open_stored, tree, exports) for tree in (base, opened)]
        resumed = pool.submit(kill_and_resume, head)
        by_base["HEAD's PPO, killed and resumed"] = trained_ppo(head)
        by_head["HEAD's PPO, killed and resumed"] = resumed.result()
        by_base |= uses[0].result()
        by_head |= uses[1].result()
    # What was bought under BASE must answer HEAD, which may have to make the stages again.
    again = opened.afarm("fake judge", judge.command())["metrics fake judge"]
    by_base["BASE's store: results by the fake judge"] = results_of(by_base["metrics fake judge"])
    by_head["BASE's store: results by the fake judge"] = results_of(again)
    by_base["BASE's store: requests to the server"] = 0
    by_head["BASE's store: requests to the server"] = judge.counts["OPENED"]
    return compare(by_base, by_head)


def results_of(metrics: Any) -> Any:
    """Return a run's results, which do not depend on what was reused; or the text of a failure."""
    return metrics["results"] if isinstance(metrics, dict) else metrics


def main() -> None:
    """Read the command line, do the work and exit with 0 if all is the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("base", metavar="BASE", help="a git revision or a directory")
    add("head", metavar="HEAD", help="a git revision or a directory")
    add("--quick", action="store_true", help="only sft, dpo and ppo of the methods")
    add("--allow", metavar="KIND", action="append", default=[], help="a kind that may differ; * fits all; repeatable")
    add("--python", default=sys.executable, help="the interpreter, with afarm's dependencies")
    add("--jobs", type=int, default=2, help="1 runs one tree after the other")
    add("--keep", type=Path, metavar="DIR", help="a new directory to work in, and not to delete")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="same-results-") as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        base = open_tree(options.base, "BASE", folder, options.python)
        head = open_tree(options.head, "HEAD", folder, options.python)
        differences = run_both(base, head, QUICK_METHODS if options.quick else METHODS, options.jobs)
    good = print_table(differences, options.allow)
    print(f"{'All the same' if good else 'NOT the same'}, after {time.monotonic() - started:.0f} s.")
    print(f"Not compared: digests of code, keys of artifacts, and the fields {', '.join(sorted(IGNORED))}.")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
