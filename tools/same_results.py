"""Compare what two versions of afarm compute: `python tools/same_results.py BASE HEAD`.

BASE and HEAD are git revisions, or directories that are used as they are. Both do the same small work on the toy recipe
with one thread and seed 42: every method, `annotate`, `evaluate`, `judge fit`, and a judge behind a fake OpenAI server.
Then HEAD's PPO is killed after its first checkpoint and goes on, and HEAD opens a copy of BASE's store: its models must
load, and no answer may be bought again. The table says `same` or `DIFFERS` for each kind of result.

Times, artifact keys, names that hold a digest of code, and versions are not compared: see `IGNORED` and `CODE`.
This file imports nothing of afarm, since what it guards may be what changed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

METHODS = ["sft", "feedme", "reward_conditioning", "dpo", "best_of_n", "expert_iteration", "ppo", "quark"]
QUICK_METHODS = ["sft", "dpo", "ppo"]

SIZES = {
    "rows": "{sft: 512, preference: 256, unlabeled: 256, validation: 32, evaluation: 96}",
    "best_of_n.n": "4",
    **{f"{method}.rollout_batch_size": "64" for method in ("ppo", "quark")},
    **{f"{method}.mini_batch_size": "32" for method in ("ppo", "quark")},
    **{f"{method}.save_steps": "2" for method in ("ppo", "quark")},
    "ppo.total_steps": "8",
    "quark.total_steps": "4",
}
TOY = ["--recipe=toy", "--seed=42", "--json", *(f"--set={name}={size}" for name, size in SIZES.items())]
STORE = ["--output-dir", "store"]
PRICE = "1000000/2000000"
"""Dollars per million tokens of the fake judge: sums of whole dollars are the same in any order."""

IGNORED = {
    *("created", "finished", "seconds", "memory", "this_time"),  # times, and what was reused
    *("key", "name", "command", "artifact", "report", "completion"),  # keys, and names that hold one
    *("afarm_version", "version", "versions", "source"),  # versions and digests of code
}
"""Fields that no comparison reads, in whatever file they stand."""

CODE = re.compile(r"(?<=@)[0-9a-f]{12}\b")
"""The digest of code in the identity of a judge that runs on this machine."""

METADATA_FIELDS = ("stage", "label", "spend", "summary")
"""What is compared of `artifact.json`; the rest is keys, times, sizes and versions."""

Results = dict[str, Any]
"""Results by kind, such as "artifacts train"; values are what JSON can hold."""


# --- The two trees -----------------------------------------------------------------------------------------------


@dataclass
class Tree:
    """A version of afarm: how to run it, and the folder in which it works."""

    name: str
    source: Path
    work: Path
    python: str

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python finds this tree's modules and entry points before the installed."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        path = os.pathsep.join(map(str, (self.metadata, self.source)))
        tokens = {"OPENAI_COMPATIBLE_API_KEY": self.name}  # by which the fake server counts apart
        offline = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return os.environ | threads | tokens | offline | {"PYTHONPATH": path, "COLUMNS": "120"}

    @property
    def metadata(self) -> Path:
        return self.work.with_name(f"{self.work.name}-metadata")

    def prepare(self) -> None:
        """Write the metadata from which entry points are read, and prove that this tree is what runs."""
        project = tomllib.loads((self.source / "pyproject.toml").read_text())["project"]
        version = project.get("version", "0")
        folder = self.metadata / f"afarm-{version}.dist-info"
        folder.mkdir(parents=True)
        self.work.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: afarm\nVersion: {version}\n")
        (folder / "top_level.txt").write_text("afarm\nafarm_plugins\n")
        points = [f"{name} = {value}" for name, value in project["entry-points"]["afarm"].items()]
        (folder / "entry_points.txt").write_text("\n".join(["[afarm]", *points]) + "\n")
        probe = (
            "import afarm, importlib.metadata as m, json;"
            "print(json.dumps([afarm.__file__, sorted(f'{p.name} = {p.value}' for p in m.entry_points(group='afarm')"
            " if p.dist.name == 'afarm')]))"
        )
        ran = subprocess.run(
            [self.python, "-c", probe], cwd=self.work, env=self.environment(), capture_output=True, text=True
        )
        if ran.returncode:
            raise SystemExit(f"{self.name}: afarm cannot be imported.\n{ran.stderr}")
        imported, found = json.loads(ran.stdout)
        if not Path(imported).resolve().is_relative_to(self.source.resolve()):
            raise SystemExit(f"{self.name}: afarm was imported from {imported}, not from {self.source}")
        if found != sorted(points):
            raise SystemExit(f"{self.name}: entry points are not this tree's: {set(found) ^ set(points)}")

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        """Start `afarm` with these arguments in a process group of its own; what it says goes into two files."""
        with (self.work / "stdout").open("w") as out, (self.work / "stderr").open("w") as err:
            return subprocess.Popen(
                [self.python, "-m", "afarm", *arguments],
                cwd=self.work,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def afarm(self, title: str, arguments: list[str]) -> Results:
        """Run `afarm` and return what it printed as `metrics TITLE`. Raises `SystemExit` if it fails in BASE."""
        started = time.monotonic()
        failed = self.start(arguments).wait()
        said = (self.work / "stderr").read_text()
        print(f"  {self.name}: {title} ({time.monotonic() - started:.0f} s)", file=sys.stderr)
        if failed:
            message = f"{self.name}: `afarm {' '.join(arguments)}` failed:\n{said[-2000:]}"
            if self.name == "BASE":
                raise SystemExit(message)
            print(message, file=sys.stderr)
            return {f"metrics {title}": f"failed: {said.strip().splitlines()[-1:]}"}
        return {f"metrics {title}": comparable(parsed_json((self.work / "stdout").read_text()))}


def open_tree(given: str, name: str, folder: Path, python: str) -> Tree:
    """Return the tree of a directory, or of a git revision, which is unpacked below `folder`."""
    source = Path(given).resolve()
    if not source.is_dir():
        repository = Path(__file__).resolve().parent.parent
        archive = subprocess.run(["git", "archive", given], cwd=repository, capture_output=True, check=True).stdout
        source = folder / f"{name}-source"
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(source, filter="data")
    tree = Tree(name, source, folder / name, python)
    tree.prepare()
    return tree


# --- The fake judge ----------------------------------------------------------------------------------------------


def fake_answer(text: str) -> str:
    """Answer a prompt of afarm's annotators, in its format, as a digest of the prompt says. One in 16 is unreadable."""
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

    def options(self) -> list[str]:
        """Return the options by which afarm asks this server."""
        return ["--judge", self.spec, "--price", f"{self.spec}={PRICE}", "--allow-degraded"]


class FakeJudgeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeJudge

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.counting:
            self.server.counts[self.headers["Authorization"].removeprefix("Bearer ")] += 1
        text = "\n".join(str(message["content"]) for message in asked["messages"])
        answer = fake_answer(text)
        tokens = {"prompt_tokens": len(text) // 4, "completion_tokens": len(answer) // 4 + 1}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        body = json.dumps(
            {"id": "fake", "object": "chat.completion", "created": 0, "model": "fake", "choices": [choice]}
            | {"usage": tokens | {"total_tokens": sum(tokens.values())}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


# --- Reading results ---------------------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """Leave out of a JSON value what `IGNORED` and `CODE` name."""
    if isinstance(value, Mapping):
        return {name: comparable(inner) for name, inner in value.items() if name not in IGNORED}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return CODE.sub("code", value) if isinstance(value, str) else value


def parsed_json(text: str) -> Any:
    """Parse JSON, or JSON lines, or return the text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text


def read_file(path: Path) -> Any:
    """Return a file as something to compare: JSON without what is ignored, the digest of any other."""
    if path.suffix in (".json", ".jsonl") and path.name != "tokenizer.json":
        value = parsed_json(path.read_text())
        if path.name == "artifact.json":
            value = {name: value.get(name) for name in METADATA_FIELDS}
        return comparable(value)
    return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def read_folder(folder: Path) -> dict[str, Any]:
    """Map the files below a folder, without hidden ones, to what is compared of each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): read_file(path) for path in files}


def find_artifacts(store: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the stage, the label and the folder of finished artifacts, oldest first."""
    for path in sorted(store.glob("artifacts/*/*/artifact.json"), key=lambda p: json.loads(p.read_text())["created"]):
        metadata = json.loads(path.read_text())
        yield metadata["stage"], metadata["label"], path.parent


def read_artifacts(store: Path) -> Results:
    """Return the contents of artifacts by stage, under their labels and, of several with one label, their order."""
    results: Results = {}
    for stage, label, folder in find_artifacts(store):
        of_stage = results.setdefault(f"artifacts {stage}", {})
        order = sum(name.startswith(f"{label} #") for name in of_stage) + 1
        of_stage[f"{label} #{order}"] = read_folder(folder)
    return results


def read_ledger(store: Path) -> Results:
    """Return request keys, answers, pair ids and judgements.

    Keys of requests to judges on this machine, and annotators' keys, hold digests of code. So a judgement is compared
    with its annotator's name and what was asked, and only the keys of requests to the fake server are compared.
    """
    database = sqlite3.connect(f"file:{store / 'ledger.sqlite'}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    answers: dict[str, dict[str, Any]] = {}
    for row in database.execute("SELECT * FROM completions"):
        asked = {"request": parsed_json(row["request"])}
        kept = {name: row[name] for name in row.keys() if name not in ("key", "run", "seconds", "created", "request")}  # noqa: SIM118
        answers[row["key"]] = comparable(asked | kept)
    judgements = []
    for row in database.execute("SELECT * FROM judgements"):
        values = {name: row[name] for name in row.keys() if name not in ("annotator", "completion", "created")}  # noqa: SIM118
        judgements.append(values | {"asked": answers.get(row["completion"], {}).get("request")})
    database.close()
    bought = [key for key, answer in answers.items() if answer["judge"].startswith("openai-compatible:")]
    return {
        "request keys": sorted(bought),
        "answers": ordered(answers.values()),
        "pair ids": sorted({judgement["pair_id"] for judgement in judgements}),
        "judgement rows": ordered(judgements),
    }


def ordered(rows: Any) -> list[Any]:
    """Sort rows by their JSON."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


# --- Comparing ---------------------------------------------------------------------------------------------------


def first_difference(base: Any, head: Any, where: str = "") -> str:
    """Describe the first place in which two JSON values differ; empty if they are the same."""
    if isinstance(base, Mapping) and isinstance(head, Mapping):
        for name in [*base, *(name for name in head if name not in base)]:
            inner = f"{where} > {name}" if where else str(name)
            if name not in head or name not in base:
                return f"{inner}: only in {'BASE' if name in base else 'HEAD'}"
            if found := first_difference(base[name], head[name], inner):
                return found
        return ""
    if isinstance(base, list) and isinstance(head, list):
        for i, (one, other) in enumerate(zip(base, head, strict=False)):
            if found := first_difference(one, other, f"{where}[{i}]"):
                return found
        return f"{where}: {len(base)} in BASE, {len(head)} in HEAD" if len(base) != len(head) else ""
    # NaN, which differs from itself, is the same here; 1 and 1.0 and True are not.
    if json.dumps(base) == json.dumps(head):
        return ""
    return f"{where}: {str(base)[:90]} in BASE, {str(head)[:90]} in HEAD"


def compare(base: Results, head: Results) -> dict[str, str]:
    """Map each kind of result to its first difference; empty if there is none."""
    kinds = [*base, *(kind for kind in head if kind not in base)]
    return {
        kind: first_difference({kind: base[kind]} if kind in base else {}, {kind: head[kind]} if kind in head else {})
        for kind in kinds
    }


def print_table(differences: Mapping[str, str], allowed: list[str]) -> bool:
    """Print a line for each kind of result; return if all are the same, or allowed to differ."""
    width = max(map(len, differences))
    good = True
    for kind, difference in differences.items():
        accepted = any(fnmatch(kind, pattern) for pattern in allowed)
        good = good and (accepted or not difference)
        state = "same" if not difference else "differs, allowed" if accepted else "DIFFERS"
        print(f"{kind:<{width}}  {state}{'  ' + difference if difference else ''}")
    return good


# --- The work ----------------------------------------------------------------------------------------------------


def write_labels(path: Path) -> None:
    """Write 240 labelled pairs for `judge fit`, in which the longer output wins three times in four."""
    rows = []
    for i in range(240):
        one, other = (
            " ".join(["word", "list", "river"][(i * k + j) % 3] for j in range(3 + (i * k) % 11)) for k in (5, 7)
        )
        longer = 1 if len(one) > len(other) else 2
        row = {"instruction": f"Say something about {i // 2}.", "output_1": one, "output_2": f"{other} {i}"}
        rows.append(row | {"preference": longer if i % 4 else 3 - longer})
    path.write_text(json.dumps(rows))


def do_work(tree: Tree, judge: FakeJudge, methods: list[str]) -> Results:
    """Run all commands in a tree, and read what they made."""
    results: Results = {}
    # One process trains all methods, which saves seven imports of torch; `run` then finds them and prints.
    results |= tree.afarm("compare", ["compare", "--methods", ",".join(methods), *TOY, *STORE])
    for method in methods:
        results |= tree.afarm(f"run {method}", ["run", "--method", method, *TOY, *STORE])
    results |= tree.afarm("annotate", ["annotate", "--annotator", "chatgpt_1", "--both-orders", *TOY, *STORE])
    votes = ["--set", "evaluate.annotator=gpt4_4", "--votes", "3"]
    results |= tree.afarm("evaluate", ["evaluate", "--method", "dpo", *votes, *TOY, *STORE])
    results |= tree.afarm("fake judge", fake_run(judge))
    write_labels(tree.work / "labels.json")
    results |= tree.afarm("judge fit", ["judge", "fit", "labels.json", "--out", "fitted", "--seed", "42", "--json"])
    results |= tree.afarm("fitted annotator", ["annotate", "--annotator", "fitted:fitted", *TOY, *STORE])
    store = tree.work / "store"
    return results | read_artifacts(store) | read_ledger(store) | {"judge fit": read_folder(tree.work / "fitted")}


def fake_run(judge: FakeJudge) -> list[str]:
    """Return the command that asks the fake server for labels and judgements."""
    return ["run", "--method", "dpo", *judge.options(), *TOY, *STORE]


def kill_and_resume(tree: Tree) -> dict[str, Any]:
    """Kill PPO after its first checkpoint, and give the command again. Return the artifact that it then makes."""
    killed = Tree(tree.name, tree.source, tree.work.with_name("killed"), tree.python)
    shutil.copytree(tree.metadata, killed.metadata)
    shutil.copytree(tree.work / "store", killed.work / "store")
    for _, label, folder in find_artifacts(killed.work / "store"):
        if label == "train ppo":
            shutil.rmtree(folder)
    command = ["run", "--method", "ppo", *TOY, *STORE]
    process = killed.start(command)
    pattern = "artifacts/train/*.partial/checkpoints/step-*"
    while process.poll() is None and not list((killed.work / "store").glob(pattern)):
        time.sleep(0.005)
    if process.poll() is not None:
        return {"killed": "PPO ended, and was not seen to write a checkpoint"}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if not list((killed.work / "store").glob(pattern)):
        return {"killed": "PPO had ended before it could be killed"}
    killed.afarm("resume ppo", command)
    return trained_ppo(killed)


def trained_ppo(tree: Tree) -> dict[str, Any]:
    """Return the contents of a tree's PPO policy, or nothing."""
    made = [folder for _, label, folder in find_artifacts(tree.work / "store") if label == "train ppo"]
    return {name: value for name, value in read_folder(made[0]).items() if name != "artifact.json"} if made else {}


def open_stored(tree: Tree, methods: list[str]) -> Results:
    """Use the models of a store that another version may have made: export policies, sample and score with them."""
    store = tree.work / "store"
    stored = {label: folder.relative_to(tree.work) / "model" for _, label, folder in find_artifacts(store)}
    results = tree.afarm("verify", ["artifacts", "verify", "--json", *STORE])
    for method in methods:
        run = min(store.glob(f"runs/toy-{method}-pool-*")).name
        results |= tree.afarm(f"export {method}", ["export", run, f"exported/{method}", "--json", *STORE])
    models = [
        f"--model={stored['train ppo']}",
        "--set=start=model",
        f"--reward-model=classifier:{stored['fit-reward']}",
    ]
    again = ["run", "--method", "best_of_n", *models, *TOY, "--output-dir", "reopened"]
    results |= tree.afarm("stored models", again) | read_artifacts(tree.work / "reopened")
    results |= {
        "exports": {name: file for name, file in read_folder(tree.work / "exported").items() if name[-3:] != ".md"}
    }
    return {f"BASE's store: {kind}": value for kind, value in results.items()}


def run_both(base: Tree, head: Tree, methods: list[str], jobs: int) -> dict[str, str]:
    """Do all the work in both trees, and map each kind of result to its first difference."""
    judge = FakeJudge()
    with ThreadPoolExecutor(jobs) as pool:
        works = [pool.submit(do_work, tree, judge, methods) for tree in (base, head)]
        by_base, by_head = (work.result() for work in works)
        by_base["requests to the server"], by_head["requests to the server"] = (
            judge.counts["BASE"],
            judge.counts["HEAD"],
        )

        opened = Tree("OPENED", head.source, base.work.with_name("opened"), head.python)
        shutil.copytree(head.metadata, opened.metadata)
        shutil.copytree(base.work, opened.work)
        exports = [method for method in methods if method in ("ppo", "best_of_n", "quark", "reward_conditioning")]
        uses = [pool.submit(open_stored, tree, exports) for tree in (base, opened)]
        resumed = pool.submit(kill_and_resume, head)
        by_base["HEAD's PPO, killed and resumed"] = trained_ppo(head)
        by_head["HEAD's PPO, killed and resumed"] = resumed.result()
        by_base |= uses[0].result()
        by_head |= uses[1].result()
    # What was bought under BASE must answer HEAD, which may have to make the stages again.
    again = opened.afarm("fake judge", fake_run(judge))["metrics fake judge"]
    for name, results, metrics in (("BASE", by_base, by_base["metrics fake judge"]), ("opened", by_head, again)):
        results["BASE's store: metrics fake judge"] = figures(metrics)
        results["BASE's store: requests to the server"] = 0 if name == "BASE" else judge.counts[opened.name]
    judge.shutdown()
    return compare(by_base, by_head)


def figures(metrics: Any) -> Any:
    """Return of a run's results what does not depend on what was reused; the text of a failure as it is."""
    return {name: metrics.get(name) for name in ("headline", "results")} if isinstance(metrics, dict) else metrics


def main() -> None:
    """Read the command line, do the work and exit with 0 if all is the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", metavar="BASE", help="a git revision or a directory")
    parser.add_argument("head", metavar="HEAD", help="a git revision or a directory")
    parser.add_argument("--quick", action="store_true", help="only sft, dpo and ppo of the methods")
    parser.add_argument(
        "--allow", metavar="KIND", action="append", default=[], help="a kind that may differ; * fits all"
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter, with afarm's dependencies")
    parser.add_argument("--jobs", type=int, default=2, help="1 runs one tree after the other")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new directory to work in, and not to delete")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="same-results-") as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        base, head = (
            open_tree(given, name, folder, options.python)
            for given, name in ((options.base, "BASE"), (options.head, "HEAD"))
        )
        differences = run_both(base, head, QUICK_METHODS if options.quick else METHODS, options.jobs)
    good = print_table(differences, options.allow)
    print(
        f"{'All the same' if good else 'NOT the same'} in {time.monotonic() - started:.0f} s; not compared: times, "
        f"code digests and the fields {', '.join(sorted(IGNORED))}"
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
