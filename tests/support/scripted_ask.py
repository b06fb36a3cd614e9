"""A judge by script, behind an `Ask` that remembers as the ledger does; and pairs for it to judge."""

import json
from dataclasses import dataclass, field

from afarm.core.errors import JudgeError
from afarm.core.judge import Capabilities, Completion
from afarm.core.records import Instruction, Pair
from afarm.core.seeding import uniform


def write(answer_format, verdicts):
    """A judge's answer; True: the first is better, None: no usable verdict. A rating is a number."""
    label = {True: "Output (a)", False: "Output (b)", None: "Neither"}
    if answer_format == "single":
        return label[verdicts[0]]
    if answer_format == "rating":
        return str(verdicts[0])
    if answer_format == "list":
        return "\n".join(f"{i}. {label[v]}" for i, v in enumerate(verdicts, 1))
    return json.dumps([{"index": i, "explanation": "", "first_is_better": v} for i, v in enumerate(verdicts, 1)])


@dataclass
class ScriptedAsk:
    """An `Ask` whose judge decides each comparison by `verdict`, and that fails after `fail_after` answers.

    `calls` has the requests of each stream.
    """

    verdict: object
    completion: bool = True
    identity: str = "scripted"
    finish_reason: str = ""
    fail_after: int = 10**9
    lacks: tuple = ()
    calls: list = field(default_factory=list)
    known: dict = field(default_factory=dict)

    def stream(self, requests):
        self.calls.append([])
        landing = sorted(enumerate(requests), key=lambda pair: uniform("landing", pair[0]))
        for index, request in landing:
            if len(self.requests) == self.fail_after:
                raise JudgeError("the line is dead")
            self.calls[-1].append(request)
            yield index, self.answer(request)

    def answer(self, r):
        return Completion(
            write(r.answer_format, [self.verdict(c) if c.pair_id else True for c in r.comparisons]),
            key=f"{r.annotator}/{'+'.join(c.pair_id + c.order for c in r.comparisons)}/{r.sample_index}",
            finish_reason=self.finish_reason,
        )

    def recall(self, keys):
        return {key: self.known[key] for key in keys if key in self.known}

    def learn(self, judgements):
        assert not any(key in self.known for key in judgements), "learned twice"
        self.known.update(judgements)

    def judge(self, role):
        return f"{self.identity}:{role}"

    def degraded(self, request):
        return self.lacks

    def capabilities(self, role):
        return Capabilities(completion=self.completion)

    @property
    def requests(self):
        return [request for call in self.calls for request in call]

    @property
    def compared(self):
        return [c for request in self.requests for c in request.comparisons if c.pair_id]


def by_pairs(requests):
    return sorted(requests, key=lambda request: [c.pair_id for c in request.comparisons])


def longer(comparison):
    return len(comparison.first) > len(comparison.second)


def by_lot(comparison):
    return uniform(comparison.pair_id, comparison.order, comparison.sample_index) < 0.5


def make_pairs(count, with_inputs=True):
    return [
        Pair(
            Instruction(f"Task {i}", "some input" if with_inputs and i % 3 == 0 else ""),
            "x" * (1 + i % 7) + str(i),
            "y" * (1 + (i * 5 + 3) % 7 + 7 * (i % 2)) + str(i),
        )
        for i in range(count)
    ]
