"""Systems are compared fairly: on draws of their own, and on nothing that was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from afarm import ConfigError, Decoding, Farm, Instruction, Sample
from afarm.core.interfaces import no_progress
from afarm.core.seeding import integer
from afarm.experiment.sampling_stages import write_outputs


class RemembersSeeds:
    def __init__(self) -> None:
        self.seeds: list[int] = []

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        self.seeds.append(seed)
        for _ in instructions:
            yield Sample("text")


def test_each_system_samples_with_a_seed_of_its_own(tmp_path: Path) -> None:
    workspace: Any = SimpleNamespace(
        seed=lambda purpose: integer(1, purpose), progress=no_progress, components=SimpleNamespace(autocast=nullcontext)
    )
    policy: Any = RemembersSeeds()
    for system in ("sft", "best_of_n", "sft"):
        write_outputs(workspace, tmp_path, policy, [Instruction("a")], Decoding(), system, "outputs")
    sft, best_of_n, again = policy.seeds
    assert sft == again
    assert sft != best_of_n


TASKS = [f"Describe the {noun} without the words new and wet." for noun in ("cat", "dog", "fox", "goat", "fig")]


@pytest.mark.parametrize("written", [{}, {"eval_set": "chats.json"}])
def test_what_is_evaluated_is_never_trained_on(
    written: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"instruction": task, "output": "done"} for task in TASKS]))
    chats = [{"messages": [{"role": "user", "content": f"{task}\n"}]} for task in TASKS]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    names = ("preference", "unlabeled", "evaluation")
    said = r"'preference'.* shares 5 instructions with 'evaluation', such as 'Describe the cat"
    with pytest.raises(ConfigError, match=said):
        Farm(
            "smol",
            model="pkg:afarm_plugins.toy/base2",
            output_dir=tmp_path / "runs",
            settings=[{"rows": dict.fromkeys(names, 0)}, {"files": dict.fromkeys(names, str(file))}, written],
        )
