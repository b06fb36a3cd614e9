"""The evaluation protocol: what two results must share to be comparable.

Two win rates can be compared only if the same judge answered the same prompt about the same instructions, against the
same reference outputs. A result is stored with its protocol, and leaderboards group by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields

from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.metrics import finite_number
from afarm.evaluation.who_judged import FORMULA, name_judge
from afarm.storage.rows import rows_digest

USUAL = "usual settings"


@dataclass(frozen=True, slots=True)
class EvaluationProtocol:
    """The conditions of an evaluation that results must share to be comparable; empty or None if unknown.

    `annotator` is its name, `asked` says which of its settings are not as they come (`USUAL` if all are), `settings`
    digests all and what its spec names, `source` its prompts and code, and
    `version` is afarm's. `judges` are the identities of the judges that were asked, by family role. `label_noise`
    is the share of judgements flipped. `instructions` and `reference_outputs` digest the evaluation's instructions and
    the outputs of `reference` to them. `drift` is the latest shift of the judge that was known when the result was made
    (`afarm.evaluation.drift_log`), empty for none.
    """

    annotator: str = ""
    settings: str = ""
    source: str = ""
    version: str = ""
    judges: Mapping[str, str] = field(default_factory=dict)
    label_noise: float | None = None
    reference: str = ""
    reference_outputs: str = ""
    instructions: str = ""
    drift: str = ""
    asked: str = ""

    @property
    def id(self) -> str:
        """Equal for comparable results of any version: `settings` and `source` hold what judges are asked."""
        return digest({name: value for name, value in {**self.to_row(), "version": ""}.items() if name != "asked"})

    @property
    def known(self) -> bool:
        return self != EvaluationProtocol()

    def to_row(self) -> Row:
        return {**asdict(self), "judges": dict(self.judges)}

    @classmethod
    def from_row(cls, row: object) -> EvaluationProtocol:
        """Read the protocol stored with a result; fields that are absent or of another type are unknown."""
        row = row if isinstance(row, Mapping) else {}
        judges = row.get("judges")
        texts = {f.name: text for f in fields(cls) if f.type == "str" and isinstance(text := row.get(f.name), str)}
        return cls(
            **texts,
            judges={str(role): str(judge) for role, judge in judges.items()} if isinstance(judges, Mapping) else {},
            label_noise=finite_number(row.get("label_noise")),
        )

    @property
    def who_judged(self) -> str:
        """Names of the judges and of the annotator that asks; formulas go alone, unless it has a file."""
        names = sorted({name_judge(judge, {}) for judge in self.judges.values()}, key=lambda n: n.startswith(FORMULA))
        annotator = name_judge(self.annotator, {}) or "an unknown annotator"
        if not names or (names[0].startswith(FORMULA) and ":" not in annotator):
            return ", ".join(names) or annotator
        return f"{', '.join(names)} with annotator {annotator}"

    def sentence(self) -> str:
        """Describe the protocol in one line."""
        if not self.known:
            return "how these were judged is not known"
        parts = [
            f"judged by {self.who_judged}",
            self.asked if self.asked != USUAL else "",
            f"against {self.reference or 'an unknown reference'}",
            f"{100 * self.label_noise:g} % label noise" if self.label_noise else "",
            f"since the judge's shift of {self.drift}" if self.drift else "",
        ]
        return ", ".join(filter(None, parts))


FIELDS: Mapping[str, str] = {
    "annotator": "annotator",
    "settings": "annotator settings",
    "source": "annotator prompts",
    "judges": "judges",
    "label_noise": "label noise",
    "reference": "reference",
    "reference_outputs": "reference outputs",
    "instructions": "instructions",
    "drift": "shift of the judge",
}
"""The fields in which comparable protocols are equal, with the words for them."""
DIGEST = 6
"""Characters of a digest: enough to tell a few apart."""


def comparable(one: EvaluationProtocol, other: EvaluationProtocol) -> list[str]:
    """List the reasons against a comparison of results with these protocols; empty if there are none."""
    if not one.known or not other.known:
        return ["how a result was judged is not known (it has no protocol: evaluate it again)"]
    return [
        f"different {words} ({describe_field(one, name)}, {describe_field(other, name)})"
        for name, words in FIELDS.items()
        if getattr(one, name) != getattr(other, name)
    ]


def describe_field(protocol: EvaluationProtocol, name: str) -> str:
    """Write the field `name` of a protocol, a digest cut short."""
    value = (name == "settings" and protocol.asked) or getattr(protocol, name)
    if isinstance(value, Mapping):
        return " + ".join(f"{role}: {identity}" for role, identity in value.items()) or "no LLM"
    if isinstance(value, str) and len(value) >= 2 * DIGEST and all(c in "0123456789abcdef" for c in value):
        return value[:DIGEST]
    if value in ("", None):
        return "none" if name == "drift" else "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def instructions_digest(ids: Iterable[str]) -> str:
    """Digest a set of instructions, by their ids, whatever their order."""
    return digest("instructions", sorted(set(ids)))


def outputs_digest(outputs: Mapping[str, str]) -> str:
    """Digest outputs by their instruction's id."""
    return answers_digest({id: digest(text) for id, text in outputs.items()})


def answers_digest(answers: Mapping[str, str]) -> str:
    """Digest outputs as `outputs_digest` does, from a digest of each."""
    return rows_digest([id, text] for id, text in sorted(answers.items()))
