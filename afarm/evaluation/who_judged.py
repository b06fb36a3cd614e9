"""Names of who judged: the judge first, then its prompt. A formula goes by its own name alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from afarm.core.errors import attribute_failures
from afarm.core.plugins import discover
from afarm.core.records import Row
from afarm.evaluation.biases import FORMULAS
from afarm.storage.runs import RunRecord

FORMULA = "the formula "
"""How the names of judges begin that are no language model."""


def judge_rows(record: Mapping[str, Any]) -> list[Row]:
    """Return what a run's record says of each of its judges; empty if nothing that can be read."""
    judges = record.get("judges")
    return [row for row in judges if isinstance(row, dict)] if isinstance(judges, list) else []


def are_formulas(record: Mapping[str, Any]) -> dict[str, bool]:
    """Map the identities of a run's judges to True if they are formulas."""
    return {str(row.get("identity")): bool(row.get("simulated")) for row in judge_rows(record)}


def known_agreement(record: Mapping[str, Any]) -> str:
    """Say how often a run's judges are known to agree with people; empty if that is not known."""
    judges = are_formulas(record)
    said = [(str(row.get("identity")), row.get("agreement")) for row in judge_rows(record)]
    return "; ".join(dict.fromkeys(f"{name_judge(judge, judges)} {figure}" for judge, figure in said if figure))


def page_finder() -> Callable[[RunRecord], dict[str, Path]]:
    """Return the finder of plugins' pages about a run's judges, by title; both raise `PluginError`."""
    found: list[Callable[[RunRecord], Mapping[str, Path]]] = []
    with attribute_failures("hook", "register_pages"):
        discover(check_configs=False, kinds=()).manager.hook.register_pages(pages=found)

    def find(record: RunRecord) -> dict[str, Path]:
        with attribute_failures("hook", "register_pages"):
            return {title: page for pages_of in found for title, page in pages_of(record).items()}

    return find


def name_judge(identity: str, judges: Mapping[str, bool], prompts: Collection[str] = (), annotator: str = "") -> str:
    """Name a judge, such as "openai:gpt-4o with prompt gpt4_4", or "the formula offline:gold".

    `judges` say of identities if they are formulas. Of several prompts, their number and their `annotator` are named.
    """
    name = re.sub("@[0-9a-f]{8,}$", "", identity).rstrip(":")
    if judges.get(identity, name.partition(":")[0] in FORMULAS):
        return FORMULA + name
    return (
        f"{name} with {len(prompts)} prompts of {annotator}"
        if len(prompts) > 1
        else " with prompt ".join([name, *prompts])
    )


def who_judged(rows: Iterable[Row], judges: Mapping[str, bool]) -> str:
    """Name who labelled stored pairs, language models first; empty if nobody had to, or a coin did.

    `judges` are the identities of all that may have been asked, each with True if it is a formula. They stand for the
    judge of an answer that names none.
    """
    found: dict[str, set[str]] = {}
    annotator = ""
    for row in rows:
        if row.get("source") not in ("noise", "rule"):
            annotator = str(row.get("annotator") or "")
            known = [str(row["judge"])] if row.get("judge") else [*judges] if row.get("completion") else []
            asked = [] if row.get("votes") else known  # a jury goes by its own name
            for judge in asked:
                found.setdefault(judge, set()).add(str(row.get("member") or annotator))
            if not asked:
                found.setdefault("people" if row.get("source") == "human" else annotator, set())
    names = [name_judge(judge, judges, prompts, annotator) for judge, prompts in sorted(found.items())]
    return ", ".join(sorted(names, key=lambda name: name.startswith(FORMULA)))
