"""Pairs whose labels follow planted principles, and a scripted judge that knows the words for them.

    python planted.py --pairs 300 --seed 1 --weights number=2,list=-1 --noise 0.1 > labels.jsonl
    afarm --plugin-file planted.py judge rubric induce labels.jsonl --judge planted -o rubric.yaml

The judge is honest and no language model. It checks criteria by formulas, and proposes those that tell a pair's outputs
apart, in one of three wordings each, beside one that need not hold. Without a rubric it prefers the longer output.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import zlib
from collections.abc import Callable, Mapping

from afarm import Capabilities, ChatRequest, Completion, Judge, Price, hookimpl
from afarm.judging import render

PARTS: Mapping[str, tuple[str, ...]] = {
    "number": ("It took 12 days.", "About 300 people came.", "That is 7 of them."),
    "list": ("\n- first\n- second\n", "\n- tea\n- bread\n"),
    "question": ("Does that help?", "Shall we go on?"),
    "thanks": ("Thank you for asking.", "Thank you."),
    "example": ("For example, a boat.", "For example, rain in May."),
    "first person": ("I think so.", "I would wait."),
    "exclamation": ("Good luck!", "How nice!"),
    "source": ("According to the town's records, it is old.", "According to a report, it works."),
}
"""Sentences that an output may have, by the principle that they meet."""
FILLER = ("The sea is calm.", "Bread is made of flour.", "The road goes north.", "Snow falls in winter.")

MEETS: Mapping[str, Callable[[str], bool]] = {
    "number": lambda text: bool(re.search(r"\d", text)),
    "list": lambda text: "\n- " in text,
    "question": lambda text: "?" in text,
    "thanks": lambda text: "thank you" in text.lower(),
    "example": lambda text: "for example" in text.lower(),
    "first person": lambda text: bool(re.search(r"\bI\b", text)),
    "exclamation": lambda text: "!" in text,
    "source": lambda text: "according to" in text.lower(),
}
WORDINGS: Mapping[str, tuple[str, str, str]] = {
    "number": ("The answer gives a number.", "the answer gives a number", "Gives a number in the answer."),
    "list": ("The answer has a bulleted list.", "The answer has a bulleted list!", "Has a bulleted list in it."),
    "question": (
        "The answer asks the reader a question.",
        "Asks the reader a question.",
        "asks a question, to the reader",
    ),
    "thanks": ("The answer thanks the reader.", "Thanks the reader.", "the answer thanks its reader"),
    "example": ("The answer gives an example.", "Gives an example.", "the answer gives an example"),
    "first person": (
        "The answer speaks in the first person.",
        "Speaks in the first person.",
        "First person is spoken.",
    ),
    "exclamation": ("The answer has an exclamation mark.", "Has an exclamation mark.", "an exclamation mark is there"),
    "source": ("The answer names a source.", "Names a source.", "the answer names a source"),
}
PRINCIPLE_OF = {text: name for name, texts in WORDINGS.items() for text in texts}


def utility(text: str, weights: Mapping[str, float]) -> float:
    return sum(weight for name, weight in weights.items() if MEETS[name](text))


def make_rows(pairs: int, seed: int, weights: Mapping[str, float], noise: float = 0.0) -> list[dict[str, object]]:
    """Make labelled pairs, two of an instruction: the higher utility is preferred, a share flipped.

    Without weights each label is a coin's. Pairs of equal utility are none.
    """
    draw, rows = random.Random(seed), list[dict[str, object]]()
    while len(rows) < pairs:
        both = []
        for _ in range(2):
            parts = [draw.choice(texts) for texts in PARTS.values() if draw.random() < 0.4]
            parts += draw.sample(FILLER, draw.randint(1, 4))
            draw.shuffle(parts)
            both.append(" ".join(parts))
        gap = utility(both[1], weights) - utility(both[0], weights)
        if both[0] == both[1] or (weights and gap == 0):
            continue
        second = draw.random() < 0.5 if not weights else (gap > 0) != (draw.random() < noise)
        task = {"instruction": f"Tell me about place {seed}-{len(rows) // 2}.", "input": ""}
        rows.append({**task, "output_1": both[0], "output_2": both[1], "preference": 1 + int(second)})
    return rows


class Planted(Judge):
    """The scripted judge. `planted:PRICE` charges that for a million tokens, as a vendor would."""

    capabilities = Capabilities()

    def __init__(self, spec, config, context):
        self.spec = spec
        self.simulated = not spec

    @property
    def identity(self):
        return f"planted:{self.spec}"

    def price(self):
        return Price(float(self.spec or 0), float(self.spec or 0))

    async def complete(self, request: ChatRequest) -> Completion:
        text = self.answer(request)
        tokens = (sum(len(message.content) for message in request.messages) // 4, len(text) // 4)
        return Completion(text, *tokens, price=self.price().of(*tokens), finish_reason="stop", model="planted")

    def answer(self, request: ChatRequest) -> str:
        shown = request.comparisons
        if request.annotator == "rubric":
            met = [MEETS[PRINCIPLE_OF[one.second]](one.first) if one.second in PRINCIPLE_OF else False for one in shown]
            return json.dumps({"answers": [{"criterion": n, "met": m} for n, m in enumerate(met, start=1)]})
        if request.annotator == "rubric:propose":
            return json.dumps({"criteria": propose(shown[0].first, shown[0].second)})
        if request.answer_format == "rating":
            return str(min(7, 1 + len(shown[0].first) // 60))
        return render([len(one.first) > len(one.second) for one in shown], request.answer_format)


def propose(better: str, worse: str) -> list[str]:
    """Propose two principles that tell the outputs apart, whichever way, and one drawn from all."""
    draw = random.Random(zlib.crc32(f"{better}|{worse}".encode()))
    apart = [name for name, meets in MEETS.items() if meets(better) != meets(worse)]
    names = dict.fromkeys([*draw.sample(apart, min(2, len(apart))), draw.choice(list(MEETS))])
    return [draw.choice(WORDINGS[name]) for name in names]


@hookimpl
def register_judges(register):
    register("planted", Planted, summary="scripted: checks criteria by formulas, and proposes them")


def parse_weights(text: str) -> dict[str, float]:
    found = {name: float(weight) for name, _, weight in (part.partition("=") for part in text.split(",") if part)}
    if unknown := found.keys() - MEETS.keys():
        raise SystemExit(f"no principle {sorted(unknown)[0]!r}: choose from {', '.join(MEETS)}")
    return found


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Write labelled pairs to stdout.")
    options.add_argument("--pairs", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--weights", type=parse_weights, default={"number": 2.0, "list": -1.0, "source": 1.0})
    options.add_argument("--noise", type=float, default=0.0)
    given = options.parse_args()
    assert all(map(math.isfinite, given.weights.values()))
    for made in make_rows(given.pairs, given.seed, given.weights, given.noise):
        sys.stdout.write(json.dumps(made) + "\n")
