"""Flags for a figure that its judge is to blame for, and the judge's biases, from judgements alone.

    tally = JudgeTally()
    for judged in judgements:
        tally.add(judged)
    tally.flags(), tally.biases()

A fault is flagged if its 95% interval lies wholly beyond what good judges do, so that few judgements raise no flag; the
shares themselves are always given. Zheng et al. 2023 ("Judging LLM-as-a-Judge", table 2) showed each pair in both
orders: GPT-4 turned its verdict on 35% of them and so chose the first 63% of the time, GPT-3.5 54% and 73%, Claude 76%
and 87%.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from afarm.core.records import JudgedPair, Row
from afarm.evaluation.biases import family_of_judge, find_family, longer, with_list
from afarm.evaluation.metrics import (
    NORMAL_95,
    WIN_RATE,
    Estimate,
    clustered_mean,
    finite_number,
    interval,
    main_metric,
    warnings,
    win_rate_interval,
    with_error,
)

BY_PLACE = 65.0
"""Percent of verdicts for the output shown first (or second) that a judge may reach without a flag."""
TURNED = 40.0
"""Percent of pairs in which the other order may turn the verdict; 50% if a judge tosses a coin."""

UNREAD = 10.0
"""Percent of pairs that may lack a verdict, as long as these could not move the win rate out of its interval."""
DRAWN, MANY = 90.0, 20
"""Percent of `MANY` verdicts or more that may be draws."""

SAYS: Mapping[str, str] = {
    "constant": "{detail}",
    "addresses_judge": "{count} of {of} outputs talk to the judge ({detail})",
    "answer_format": "{count} of {of} outputs quote the format of a judge's prompt or verdict ({detail})",
    "disguised": "{count} of {of} outputs hide letters ({detail})",
    "thoughts": "{count} of {of} outputs hold the model's thoughts, which were judged with the answer",
    "no_answer": "{count} of {of} outputs are thoughts that never come to an answer",
    "empty": "{count} of {of} outputs are empty",
    "own_family": "the judge grades its own family: {example}",
    "place": "the judge goes by place: it chose the output shown {detail}",
    "turned": "the other order of the outputs turned the verdict on {count} of {of} pairs: those tell nothing",
    "unread": "{count} of {of} pairs have no verdict: {detail}",
    "drawn": "{count} of {of} verdicts are draws: the judge hardly tells two outputs apart",
    "learned_drawn": "{count} of {of} verdicts that it was to learn from are draws: they hardly tell two outputs apart",
    "no_logprobs": "{count} of {of} answers came without the log-probabilities that the prompt reads its verdicts from "
    "(--set VENDOR.capabilities.logprobs=false --allow-degraded goes by what the judge writes)",
    "unlikely": "in {count} of {of} answers all tokens of a verdict together had less than half of the probability: "
    "the judge was about to write others",
    "noise": "{count} of {of} verdicts are coin flips (label noise)",
    "learned_noise": "{count} of {of} labels that it learned from are coin flips (label noise)",
    "learned_unread": "{count} of {of} pairs that it was to learn from have no verdict",
    "below_chance": "the reward model is worse than chance: it agrees with {count} of {of} held-out labels. Are the "
    "labels that it was fitted to the right way round (--labels)?",
}
"""The flags there are, with the sentence of each; others are called by their detail."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Something suspicious in `count` of `of` outputs or verdicts, such as `example`; see `detail`."""

    name: str
    count: int
    of: int
    example: str = ""
    detail: str = ""

    @property
    def sentence(self) -> str:
        says = SAYS.get(self.name, "{detail}")
        says = says.format(count=self.count, of=self.of, example=self.example, detail=self.detail)
        return says if not self.example or self.name == "own_family" else f"{says}, such as {self.example!r}"

    def to_row(self) -> Row:
        return {**asdict(self), "says": self.sentence}


class JudgeTally:
    """Counts over the judgements of a system, added one by one.

    `wins` holds (instruction, the system's win) of each verdict, `choices` (pair, choice) by what the judge chose in:
    1 for the longer output or for the one with a list, where outputs differ in that; for output_1 by the order in which
    the two were shown, "12" or "21"; and 1 for another output in the other order.
    """

    def __init__(self) -> None:
        self.rows = self.noise = self.drawn = self.judged = 0
        self.wins: list[tuple[int, float]] = []
        self.choices: dict[str, list[tuple[str, float]]] = defaultdict(list)

    def add(self, judged: JudgedPair, shown: Mapping[str, float] | None = None) -> None:
        """Count a judgement.

        `shown` is the judge's choice of the output shown first in each order, from 0 to 1, if it is known. A pair that
        nobody judged (identical outputs, none) says nothing of the judge.
        """
        pair, label, win = judged.pair, judged.preference, judged.win
        self.rows += 1
        self.noise += label.source == "noise"
        if win is None:
            return
        self.wins.append((hash(pair.instruction), win))
        if label.source != "judge" or pair.identical:
            return
        choices: dict[str, float] = {}
        if label.order != "both":
            choices[label.order] = 1 - win
            self.judged, self.drawn = self.judged + 1, self.drawn + (win == 0.5)
        elif shown and len(shown) == 2:
            first, second = shown.values()
            choices |= {"12": first, "21": 1 - second, "turned_by_order": float((first - 0.5) * (second - 0.5) > 0)}
        else:
            choices["turned_by_order"] = float(win == 0.5)
        if win != 0.5:
            for name, feature in (("prefers_longer", longer), ("prefers_lists", with_list)):
                if (wanted := feature(pair.output_1, pair.output_2)) is not None:
                    choices[name] = float(wanted == (2 if win > 0.5 else 1))
        for name, choice in choices.items():
            self.choices[name].append((label.pair_id, choice))

    def biases(self) -> dict[str, Estimate | None]:
        """The judge's biases by their names in `RedFlags`.

        That for the output shown first is the mean of both orders, so that no system's merit counts, and None if
        outputs were shown in one order only.
        """
        means = {name: clustered_mean(choices) for name, choices in self.choices.items()}
        straight, switched, first = means.get("12"), means.get("21"), None
        if straight and switched:
            error = math.hypot(straight.error or 0.0, switched.error or 0.0) / 2
            first = Estimate((straight.value + 1 - switched.value) / 2, error, straight.n + switched.n)
        others = ("prefers_longer", "prefers_lists", "turned_by_order")
        return {"prefers_first_shown": first, **{name: means.get(name) for name in others}}

    def flags(self) -> list[Flag]:
        """The faults of the judge that its verdicts show."""

        def ends(rate: float, error: float | None, n: int) -> tuple[float, float]:
            return interval(rate, error or 0.0, n) or (0.0, 100.0)

        flags = [Flag("noise", self.noise, self.rows)] if self.noise else []
        flags += drawn_flags("drawn", self.drawn, self.judged)
        biases, rate = self.biases(), clustered_mean(self.wins, 100)
        if (place := biases["prefers_first_shown"]) is not None:
            share = max(place.value, 1 - place.value)
            if ends(100 * share, 100 * (place.error or 0.0), place.n)[0] > BY_PLACE:
                detail = f"{'first' if share == place.value else 'second'} {100 * share:.0f} % of {place.n} times"
                flags.append(Flag("place", round(share * place.n), place.n, "", detail))
        turned = biases["turned_by_order"]
        if turned and ends(100 * turned.value, 100 * (turned.error or 0.0), turned.n)[0] > TURNED:
            flags.append(Flag("turned", round(turned.value * turned.n), turned.n))
        if rate is not None and (unread := self.rows - rate.n):
            low, high = ends(rate.value, rate.error, len({instruction for instruction, _ in self.wins}))
            part, lost = 100 * unread / self.rows, rate.value * rate.n / self.rows
            won = lost + part
            moves = max(rate.value - lost, won - rate.value) > (high - low) / 2
            if moves or ends(part, math.sqrt(part * (100 - part) / (self.rows - 1)), self.rows)[0] > UNREAD:
                detail = f"the win rate is of the other {rate.n}; all lost or all won, it is {lost:.1f} or {won:.1f} %"
                flags.append(Flag("unread", unread, self.rows, "", detail))
        return flags


def drawn_flags(name: str, drawn: int, judged: int) -> list[Flag]:
    """Flag verdicts that are nearly all draws."""
    return [Flag(name, drawn, judged)] if judged >= MANY and 100 * drawn > DRAWN * judged else []


def accuracy_interval(accuracy: float, pairs: float) -> tuple[float, float]:
    """Return the 95% interval, in percent, of a share from 0 to 1 of `pairs`."""
    error = 100 * math.sqrt(accuracy * (1 - accuracy) / max(1, pairs - 1))
    return interval(100 * accuracy, error, round(pairs)) or (0.0, 100.0)


def reward_flags(summary: Mapping[str, Any]) -> list[Flag]:
    """Flag a reward model that agrees with fewer held-out labels than a coin, from the summary of its fit."""
    accuracy, pairs = finite_number(summary.get("eval_accuracy")), finite_number(summary.get("eval_pairs"))
    if accuracy is None or not pairs or accuracy_interval(accuracy, pairs)[1] >= 50:
        return []
    return [Flag("below_chance", round(accuracy * pairs), round(pairs))]


def evaluator_flags(results: Mapping[str, Mapping[str, Any]]) -> list[Flag]:
    """Flag what evaluators warn of, and those that contradict the judge, from metrics by evaluator.

    One contradicts it if it is on the other side of even than the win rate, both by their 95% intervals.
    """
    flags = [
        Flag(name, 1, 1, "", f"{evaluator}: {text}")
        for evaluator, metrics in results.items()
        for name, text in warnings(metrics).items()
    ]
    low, high = win_rate_interval(results.get(WIN_RATE, {})) or (0.0, 100.0)
    if low <= 50 <= high:
        return flags
    won = f"{results[WIN_RATE]['win_rate']:.1f} % won by the judge"
    for evaluator, metrics in results.items():
        main = main_metric(evaluator, metrics)
        if main is None or (gap := main.value - 50 if main.is_win_rate else main.difference) is None:
            continue
        reach = NORMAL_95 * ((main.error if main.is_win_rate else main.difference_error) or math.inf)
        if gap < -reach if low > 50 else gap > reach:
            below = f"{with_error(abs(gap), main.difference_error)} {'below' if gap < 0 else 'above'} the reference"
            other = f"{main.text} by {evaluator}" if main.is_win_rate else f"{evaluator} is {below}"
            flags.append(Flag("contradicted", 1, 1, "", f"the judge and {evaluator} disagree: {won}, and {other}"))
    return flags


def family_flags(judged: Iterable[tuple[str, str, str, str]], models: Mapping[str, str]) -> list[Flag]:
    """Flag judges of a system's family; `judged`: (judge's identity, annotator, reference, system)."""
    sentences: dict[str, None] = {}
    for judge, annotator, *generators in judged:
        named = judge and not judge.startswith("replay:")  # stored answers are those of the annotator's model
        family = family_of_judge(judge, {}) if named else find_family(annotator.replace("alpaca_eval", ""), {})
        if family is None:
            continue
        for generator in generators:
            if (find_family(generator, {}) or find_family(models.get(generator, ""), {})) == family:
                sentences[f"{judge or annotator} judges {generator} ({family})"] = None
    return [Flag("own_family", 1, 1, sentence) for sentence in sentences]
