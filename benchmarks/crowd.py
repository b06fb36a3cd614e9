"""A simulated crowd labels in a browser until it is decided which model is better: its time against a fixed number.

    python -m benchmarks.crowd PANDALM_DIRECTORY

needs afarm-people, playwright and Chromium, and writes its table to docs/notes/benchmarks.md. Every label is a key
pressed on a page of `afarm label --until decided` in headless Chromium, by three people in a browser context each. They
answer as PandaLM's three people answered that pair. A round draws its pairs with replacement, so that the truth is the
mean of all people's labels. Reading is not waited for: the time of a label is drawn, and orders who presses next.

The fixed number is of the same draw: labels that were not needed are those of a person drawn at random.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from afarm_people.store import ProjectStore

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONTESTS = (("cerebras-gpt-6.7B", "llama-7b"), ("cerebras-gpt-6.7B", "pythia-6.9b"))
"""A reference and a model that people prefer to it: clearly, and somewhat."""
PEOPLE = 3
MEDIAN_SECONDS, SPREAD = 30.0, 0.7
"""The time of a label is log-normal: its median, and the standard deviation of its logarithm. Both are assumed."""
LINK = re.compile(r"^  p\d: (\S+)$", re.MULTILINE)
READ = """() => [document.querySelector(".card:not(.guideline) > .text").textContent,
  ...[...document.querySelectorAll(".response")].map((one) => one.querySelector(".text")?.textContent ?? "")]"""


class Task(NamedTuple):
    """A pair, the model's response second, and how often each person preferred it: 1, 0 or, for a tie, 1/2."""

    instruction: str
    outputs: tuple[str, str]
    votes: tuple[float, ...]


@dataclass
class Round:
    """One draw: `votes` by number of the task, until the server's `decision`; and those of the whole draw."""

    votes: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    whole_seconds: float = 0.0
    whole_votes: list[float] = field(default_factory=list)
    decision: str = ""


def read_contest(directory: Path, reference: str, model: str) -> list[Task]:
    """Read the pairs of two of PandaLM's models; its few responses that are no text are left out."""
    tasks = []
    with gzip.open(directory / "testset-v1.json.gz", "rt", encoding="utf-8") as handle:
        rows = json.load(handle)
    for row in rows:
        names, outputs = row["cmp_key"].split("_"), (row["response1"], row["response2"])
        if set(names) != {reference, model} or not all(isinstance(text, str) for text in outputs):
            continue
        place = names.index(model)
        votes = [str(row[f"annotator{number}"]) for number in range(1, PEOPLE + 1)]
        wins = tuple(0.5 if vote == "0" else float(int(vote) - 1 == place) for vote in votes)
        text = f"{row['instruction']}\n\n{row['input']}".strip()
        tasks.append(Task(text, (outputs[1 - place], outputs[place]), wins))
    return tasks


@contextmanager
def served(pairs: Path, seed: int) -> Iterator[list[str]]:
    """Serve pairs until they are decided; yields a sign-in link for each person."""
    command = [sys.executable, "-m", "afarm", "label", str(pairs), "--until", "decided", "--port", "0"]
    command += ["--people", ",".join(f"p{number}" for number in range(PEOPLE)), "--seed", str(seed)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr
    try:
        said = ""
        for line in server.stderr:
            said += line
            if " so far, in " in line:
                break
        yield LINK.findall(said)
    finally:
        server.kill()
        server.wait()


def same_text(one: str, other: str) -> bool:
    return one.split() == other.split()


def press_answer(page: Page, person: int, tasks: Sequence[Task], votes: dict[int, float]) -> None:
    """Read the page, and press the key that says what this person said of its pair."""
    instruction, first, second = page.evaluate(READ)
    number = int(instruction.split()[-1])
    task = tasks[number]
    shown = [same_text(first, task.outputs[0]) and same_text(second, task.outputs[1])]
    shown += [same_text(first, task.outputs[1]) and same_text(second, task.outputs[0])]
    assert sum(shown) == 1, (number, first, second)
    votes[number] = task.votes[person]
    liking = task.votes[person] if shown[0] else 1 - task.votes[person]
    with page.expect_navigation(wait_until="domcontentloaded"):
        page.keyboard.press({0.0: "1", 0.5: "0", 1.0: "4"}[liking])


def label_until_decided(pages: Sequence[Page], population: Sequence[Task], count: int, seed: int) -> Round:
    """Draw `count` pairs and have people label them, on a page each, until nobody is given one."""
    draws = random.Random(seed)
    tasks, done = [draws.choice(population) for _ in range(count)], Round()
    rest = [(draws.choice(task.votes), draws.lognormvariate(log(MEDIAN_SECONDS), SPREAD)) for task in tasks]
    with tempfile.TemporaryDirectory() as directory:
        pairs = Path(directory, "pairs.jsonl")
        rows = [
            {"instruction": f"{task.instruction}\n\nTask {n}", "output_1": task.outputs[0], "output_2": task.outputs[1]}
            | {"generator_1": "reference", "generator_2": "model"}
            for n, task in enumerate(tasks)
        ]
        pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with served(pairs, seed) as links:
            for page, link in zip(pages, links, strict=True):
                page.goto(link)

            def read_for() -> float:
                return draws.lognormvariate(log(MEDIAN_SECONDS), SPREAD)

            due = [(seconds := read_for(), person, seconds) for person in range(PEOPLE)]
            heapq.heapify(due)
            while due:
                now, person, spent = heapq.heappop(due)
                press_answer(pages[person], person, tasks, done.votes)
                done.seconds += spent
                if "/pair/" in pages[person].url:
                    heapq.heappush(due, (now + (seconds := read_for()), person, seconds))
        store = ProjectStore(pairs.with_name("pairs.people.sqlite"))
        done.decision = store.get("decision")
        store.close()
    done.whole_seconds = done.seconds + sum(s for n, (_, s) in enumerate(rest) if n not in done.votes)
    done.whole_votes = [done.votes.get(n, vote) for n, (vote, _) in enumerate(rest)]
    return done


def name_better(votes: Sequence[float]) -> int:
    """Tell which side of one half the mean is clearly on, by its 95 % interval: 1, -1 or neither, 0."""
    mean, error = statistics.fmean(votes), statistics.stdev(votes) / sqrt(len(votes))
    return (mean - 1.96 * error > 0.5) - (mean + 1.96 * error < 0.5)


def write_line(names: Sequence[str], population: Sequence[Task], rounds: Sequence[Round]) -> str:
    """Write the row of a contest."""
    truth = statistics.fmean(vote for task in population for vote in task.votes)
    side = 1 if truth > 0.5 else -1
    stopped = [side * ((" is better " in one.decision) - (" is worse " in one.decision)) for one in rounds]
    fixed = [side * name_better(one.whole_votes) for one in rounds]
    told = [f"{sum(n == 1 for n in one)} / {sum(n == -1 for n in one)} / {one.count(0)}" for one in (stopped, fixed)]
    labels = sorted(len(one.votes) for one in rounds)
    minutes = [statistics.fmean(getattr(r, name) for r in rounds) / 60 for name in ("seconds", "whole_seconds")]
    return (
        f"| {names[1]} against {names[0]} | {100 * truth:.1f} % | {statistics.median(labels):.0f} "
        f"({labels[0]} to {labels[-1]}) | {minutes[0]:.0f} | {minutes[1]:.0f} | {told[0]} | {told[1]} |"
    )


def measure(directory: Path, seeds: int, count: int) -> list[str]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "needs Chromium: apt-get install chromium"
    from benchmarks.__main__ import processor

    began = time.perf_counter()
    load, found = os.getloadavg()[0], dict[tuple[str, str], tuple[list[Task], list[Round]]]()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        pages = [browser.new_context().new_page() for _ in range(PEOPLE)]
        for names in CONTESTS:
            population, rounds = read_contest(directory, *names), list[Round]()
            for seed in range(seeds):
                rounds.append(label_until_decided(pages, population, count, seed))
                sys.stderr.write(f"{names} seed {seed}: {len(rounds[-1].votes)} labels. {rounds[-1].decision}\n")
            found[names] = population, rounds
            sys.stderr.write(write_line(names, population, rounds) + "\n")
        version = browser.version
        browser.close()
    machine = (
        f"Measured {time.strftime('%Y-%m-%d')} on {os.cpu_count()} CPU cores ({processor()}), {platform.system()}, "
        f"Python {platform.python_version()}, Chromium {version}; load average before the start {load:.1f}."
    )
    return [machine, "", *write_table(found, seeds, count, time.perf_counter() - began)]


def write_table(
    found: Mapping[tuple[str, str], tuple[Sequence[Task], Sequence[Round]]], seeds: int, count: int, seconds: float
) -> list[str]:
    labels = sum(len(one.votes) for _, rounds in found.values() for one in rounds)
    return [
        f"Right, wrong and open are of {seeds} rounds: decided for the model that people prefer, for the other, or not "
        f"within {count} labels. Of the fixed {count}, the 95 % interval decides, if it leaves out 50 %.",
        "",
        "| PandaLM's models | people prefer the first | labels until decided, median (range) | person-minutes until "
        f"decided | of {count} labels | right / wrong / open when decided | of {count} labels |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(write_line(names, *rows) for names, rows in found.items()),
        "",
        f"{labels:,} labels were given by keyboard, in {seconds / 60:.0f} minutes. People's minutes are assumed: "
        f"{PEOPLE} people who take {MEDIAN_SECONDS:.0f} s a label in the median (log-normal, σ {SPREAD:g}).",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--labels", type=int, default=300)
    given = parser.parse_args()
    lines = measure(given.directory, given.seeds, given.labels)
    from benchmarks.__main__ import write_section

    write_section("A crowd in a browser", lines)
