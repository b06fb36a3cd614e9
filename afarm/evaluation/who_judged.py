"""Who judged, in words: the judge first, then its prompt; a formula goes by its own name, never by a prompt's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from afarm.core.records import JudgedPair, Row
from afarm.evaluation.biases import FORMULAS
from afarm.storage.runs import RunRecord

_DIGEST = re.compile(r"@[0-9a-f]{8,}$")
FORMULA = "the formula "
"""How the names of judges begin that are no language model."""


def are_formulas(record: RunRecord) -> dict[str, bool]:
    """Map the identities of a run's judges to True if they are formulas."""
    return {
        str(row.get("identity")): bool(row.get("simulated")) for row in record.rows("judges") if isinstance(row, dict)
    }


def name_judge(identity: str, judges: Mapping[str, bool], prompts: Collection[str] = (), annotator: str = "") -> str:
    """Name a judge, such as "openai:gpt-4o with prompt gpt4_4", or "the formula offline:gold".

    `judges` say of identities if they are formulas. Of several prompts, their number and their `annotator` are named.
    """
    name = _DIGEST.sub("", identity)
    if judges.get(identity, name.partition(":")[0] in FORMULAS):
        return FORMULA + name
    if len(prompts) > 1:
        return f"{name} with {len(prompts)} prompts of {annotator}"
    return " with prompt ".join([name, *prompts])


def who_judged_pair(row: Row, judges: Mapping[str, bool]) -> str:
    """Name who labelled a stored pair; empty if nobody had to. `judges` are as in `who_judged`."""
    if row.get("source") in ("noise", "rule"):
        return "a coin: label noise" if row.get("source") == "noise" else ""
    prompt = [name for name in (row.get("member"), row.get("annotator")) if name][:1]
    if asked := _asked(row, judges):
        return ", ".join(name_judge(judge, judges, [*map(str, prompt)]) for judge in asked)
    return "people" if row.get("source") == "human" else name_judge(str(row.get("annotator") or ""), judges)


def who_judged(judged: Iterable[JudgedPair], annotator: str, judges: Mapping[str, bool]) -> str:
    """Name who labelled all these pairs, language models first; empty if nobody had to.

    `judges` are the identities of all that `annotator` may ask, each with True if it is a formula. They stand for the
    judge of an answer that names none.
    """
    prompts: dict[str, set[str]] = {}
    others: set[str] = set()
    for row in judged:
        label, name = row.preference, row.annotator or annotator
        about = {"source": label.source, "judge": label.judge, "completion": label.completion, "annotator": name}
        asked = _asked(about, judges)
        for judge in asked:
            prompts.setdefault(judge, set()).add(label.member or name)
        if not asked and label.source not in ("noise", "rule"):
            others.add(who_judged_pair(about, judges))
    names = [name_judge(judge, judges, found, annotator) for judge, found in sorted(prompts.items())]
    return ", ".join([*sorted(names, key=lambda name: name.startswith(FORMULA)), *sorted(others)])


def _asked(row: Row, judges: Mapping[str, bool]) -> list[str]:
    """List the judges behind a label: the one that it names, or all if it has an answer and names none."""
    return [str(row["judge"])] if row.get("judge") else [*judges] if row.get("completion") else []
