"""Questions of a method to a judge about its own responses, and what is read from replies.

A reply counts if it is the form that the prompt asks for and nothing else, beside thoughts and decoration: so what a
reply quotes is never taken for the judge's own word. Questions depend on seed, method, task and response alone, so that
their answers are found in the ledger after a kill.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any

import yaml

from afarm.core.interfaces import MethodJudge, Progress, no_progress
from afarm.core.judge import Ask, ChatRequest, ShownPair
from afarm.core.records import Instruction, Message
from afarm.core.seeding import digest, uniform
from afarm.judging.pairwise import REFUSALS, REMINDER
from afarm.judging.refusals import FirstAnswers
from afarm.storage.thoughts import cut_thoughts

ALONE = "alone"
"""The order of an output beside which no other is shown."""
ATTEMPTS = 2
"""How often a question is asked whose answer cannot be read."""

_LEAD = r"(?:(?:my |the |final |overall ){0,3}(?:mark|rating|score|ranking)(?: is)? ?[:=]? ?)?"
_MARK = re.compile(_LEAD + r"(-?[0-9]+(?:\.[0-9]+)?)(?: ?(?:/|out of) ?([0-9]+))?\.?", re.IGNORECASE)
_RANKING = re.compile(_LEAD + r"((?:answer )?[0-9]{1,4}(?: ?[>=] ?(?:answer )?[0-9]{1,4})*)\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a `kind` in method_prompts.yaml about the outputs `shown`."""

    kind: str
    shown: tuple[ShownPair, ...]
    words: Mapping[str, str]
    read: Callable[[str], Any]
    labels: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return digest(self.kind, [pair.pair_id for pair in self.shown], dict(self.words))


class PromptedJudge(MethodJudge):
    """Asks the judge of a family role by `ask()`.

    Accounts call what it asks `name:rate`, `name:rank` and `name:criticise`. Each line of an output is shown behind a
    bar: what a policy writes never looks like a part of the prompt.
    """

    def __init__(
        self, ask: Callable[[], Ask], name: str, role: str = "strong", seed: int = 0, progress: Progress = no_progress
    ):
        self.ask, self.name, self.role, self.seed, self.progress = ask, name, role, seed, progress
        self.first = defaultdict[str, FirstAnswers](FirstAnswers)

    def rate(self, instructions: Any, outputs: Any, *, rubric: str = "", scale: Any = (1, 7)) -> list[float | None]:
        """See `MethodJudge.rate`."""
        labels = tuple(map(str, range(scale[0], scale[1] + 1)))
        if not 2 <= len(labels) <= 101:
            raise ValueError(f"a scale goes from a whole number to a higher one, at most 100 above it, not {scale}")
        words, read = {"rubric": rubric, "low": labels[0], "high": labels[-1]}, partial(read_mark, scale=scale)
        rows = zip(instructions, self.texts(outputs), strict=True)
        return self.collect([Question("rate", (_show("rated", *row),), words, read, labels) for row in rows])

    def rank(self, instructions: Any, groups: Any, *, rubric: str = "") -> list[list[float] | None]:
        """See `MethodJudge.rank`."""
        groups, questions, orders = [self.texts(group) for group in groups], [], []
        for task, group in zip(instructions, groups, strict=True):
            drawn = {output: uniform(self.seed, "ranked", task.id, output) for output in group}
            orders.append(sorted(drawn, key=lambda output: (drawn[output], output)))
            shown = tuple(_show("ranked", task, output) for output in orders[-1])
            words, read = {"rubric": rubric, "count": str(len(shown))}, partial(read_ranking, count=len(shown))
            questions += [Question("rank", shown, words, read)] if len(shown) > 1 else []
        answers = iter(self.collect(questions))
        read_tiers = [next(answers) if len(order) > 1 else [0] * len(order) for order in orders]
        return [
            None if tiers is None else _places([tiers[order.index(output)] for output in group])
            for group, order, tiers in zip(groups, orders, read_tiers, strict=True)
        ]

    def criticise(self, instructions: Any, outputs: Any, *, rubric: str = "") -> list[str | None]:
        """See `MethodJudge.criticise`."""
        words, rows = {"rubric": rubric}, zip(instructions, self.texts(outputs), strict=True)
        return self.collect([Question("criticise", (_show("criticised", *row),), words, read_text) for row in rows])

    def texts(self, outputs: Sequence[str]) -> Sequence[str]:
        """Return the outputs to ask about."""
        return outputs

    def collect(self, questions: Sequence[Question]) -> list[Any]:
        """Return what each question's answer says; None if it cannot be read the second time either.

        Raises `JudgeError` if none of the first answers of a kind can be read.
        """
        answers: list[Any] = [None] * len(questions)
        waiting, ask = [*range(len(questions))], self.ask()
        for attempt in range(ATTEMPTS):
            requests = [self.request(questions[i], attempt) for i in waiting]
            with closing(ask.stream(requests)) as stream:
                several = len(waiting) > 1
                for number, completion in self.progress(stream, "judge requests", len(waiting)) if several else stream:
                    question = questions[waiting[number]]
                    text = "" if completion.finish_reason in REFUSALS else completion.text
                    if (read := question.read(text)) is None:
                        self.first[question.kind].add_unreadable(text, ask.judge(self.role), requests[number])
                    else:
                        self.first[question.kind].about = None
                    answers[waiting[number]] = read
            waiting = [i for i in waiting if answers[i] is None]
        return answers

    def request(self, question: Question, attempt: int = 0) -> ChatRequest:
        """Build the request that asks a question; another `attempt` restates the form."""
        prompt, shown = _prompts()[question.kind], question.shown
        texts = ["\n".join(f"| {line}" for line in pair.first.splitlines() or [""]) for pair in shown]
        listed = [f"Answer {number}:\n{text}" for number, text in enumerate(texts, start=1)]
        words = {**question.words, "rubric": question.words["rubric"] or _prompts()["default_rubric"]}
        task = shown[0].instruction
        turns = [f"[{message.role}] {message.content}" for message in task.messages]
        earlier = ["Earlier in the conversation:", *turns, ""] if turns else []
        words |= {"task": "\n".join([*earlier, task.instruction, *(["", "Input:", task.input] if task.input else [])])}
        words |= {"answers": "\n\n".join(listed) if len(shown) > 1 else texts[0]}
        system, user = (Template(prompt[turn]).substitute(words) for turn in ("system", "user"))
        chats = self.ask().capabilities(self.role).chat
        user += f"\n\n{REMINDER}" if chats and attempt else ""
        return ChatRequest(
            role=self.role,
            messages=(Message("system", system), Message("user", user)) if chats else (),
            prompt="" if chats else f"{system}\n\n{user}",
            max_tokens=prompt["max_tokens"] * len(shown),
            comparisons=tuple(replace(pair, sample_index=attempt) for pair in shown),
            answer_format=prompt["answer_format"],
            labels=question.labels,
            annotator=f"{self.name}:{question.kind}",
            seed=self.seed,
            sample_index=attempt,
        )


class PlannedJudge(PromptedJudge):
    """Keeps the `questions` that it is asked, and answers none. An output is taken to begin with `text`."""

    def __init__(self, ask: Callable[[], Ask], name: str, role: str = "strong", seed: int = 0, text: str = "word"):
        super().__init__(ask, name, role, seed)
        self.text, self.made_up, self.questions = text, 0, list[Question]()

    def texts(self, outputs: Sequence[str]) -> Sequence[str]:
        """Make up as many texts, each another one."""
        self.made_up += len(outputs)
        return [f"{self.text} {self.made_up - number}" for number in range(len(outputs))]

    def collect(self, questions: Sequence[Question]) -> list[Any]:
        """Keep the questions."""
        self.questions += questions
        return [None] * len(questions)


@cache
def _prompts() -> Any:
    return yaml.safe_load(Path(__file__).with_name("method_prompts.yaml").read_text(encoding="utf-8"))


def _show(purpose: str, task: Instruction, output: str) -> ShownPair:
    return ShownPair(digest(purpose, task.id, output), task, output, "", ALONE)


def _places(tiers: Sequence[int]) -> list[float]:
    """Return places by tiers, 0 the best: outputs of one tier share the mean of their places."""
    return [sum(other < tier for other in tiers) + (tiers.count(tier) + 1) / 2 for tier in tiers]


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[*_`\"]", "", cut_thoughts(text)).split())


def read_mark(text: str, scale: tuple[int, int]) -> float | None:
    """Read a reply that is a mark on `scale`, perhaps as "5/7", and nothing else; None for others."""
    found = _MARK.fullmatch(_plain(text))
    mark = float(found[1]) if found and found[2] in (None, str(scale[1])) else None
    return mark if mark is not None and scale[0] <= mark <= scale[1] else None


def read_ranking(text: str, count: int) -> list[int] | None:
    """Read a reply such as `2 > 1 = 3`, all numbers to `count` once: the tier of each answer, 0 the best."""
    found = _RANKING.fullmatch(_plain(text))
    tiers = enumerate(found[1].split(">") if found else ())
    ranked = sorted((int(number), place) for place, tier in tiers for number in re.findall("[0-9]+", tier))
    return [place for _, place in ranked] if [number for number, _ in ranked] == [*range(1, count + 1)] else None


def read_text(text: str) -> str | None:
    """Read a reply without its thoughts; None if nothing is left."""
    return cut_thoughts(text).strip() or None
