"""The toy world: its words, its instructions, and the gold reward of an answer.

Everything here is frozen: its fingerprint (`fingerprint.py`) is written into the base model's card, and a test compares
the two. The constants were fixed on annotator statistics and on the headroom above SFT, before any method was compared;
see `docs/notes/toy-world.md`. Pure Python; nothing is drawn except from generators that the caller seeds.

An answer is a core sentence (what was asked for) and details, each a sentence of its own:

    Which word in the input is a tree? / fox, oak, drum  ->  "oak. it is big. it looks old."
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from afarm import DataError, Instruction

CATEGORIES: dict[str, tuple[str, ...]] = {
    "animal": ("cat", "dog", "horse", "fox", "bear", "rabbit", "goat", "mouse", "lion", "wolf"),
    "fruit": ("apple", "pear", "plum", "grape", "lemon", "melon", "cherry", "peach", "mango", "fig"),
    "tool": ("hammer", "saw", "drill", "wrench", "shovel", "rake", "axe", "chisel", "pliers", "spanner"),
    "vehicle": ("car", "bus", "train", "truck", "bike", "boat", "plane", "tram", "van", "scooter"),
    "garment": ("shirt", "coat", "hat", "scarf", "sock", "glove", "dress", "jacket", "skirt", "belt"),
    "drink": ("tea", "coffee", "milk", "juice", "water", "soda", "cider", "cocoa", "wine", "broth"),
    "instrument": ("drum", "flute", "piano", "violin", "guitar", "trumpet", "harp", "cello", "horn", "tuba"),
    "tree": ("oak", "pine", "birch", "maple", "elm", "willow", "cedar", "ash", "fir", "beech"),
}
OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("loud", "quiet"),
    ("soft", "hard"),
    ("wild", "tame"),
    ("sweet", "bitter"),
    ("old", "new"),
    ("bright", "dark"),
    ("heavy", "light"),
    ("wet", "dry"),
    ("round", "flat"),
)
TRUE_OF: dict[str, tuple[str, ...]] = {
    "animal": ("soft", "fast", "wild", "small"),
    "fruit": ("sweet", "round", "wet", "bright"),
    "tool": ("hard", "heavy", "old", "flat"),
    "vehicle": ("fast", "loud", "big", "new"),
    "garment": ("soft", "light", "dry", "new"),
    "drink": ("wet", "hot", "bitter", "dark"),
    "instrument": ("loud", "bright", "round", "old"),
    "tree": ("big", "quiet", "wild", "hard"),
}
COUNTS: dict[str, int] = {"two": 2, "three": 3, "four": 4}
FAMILIES: tuple[str, ...] = ("list", "opposite", "which", "describe", "is")

GOLD: dict[str, float] = {
    "core": 1.2,
    "detail": 0.5,
    "surplus": -0.5,
    "wrong": -0.7,
    "repeated": -0.7,
    "junk": -0.6,
    "unfinished": -0.3,
    "beyond_three": -0.25,
}
"""The gold reward of an answer is the sum of these over its `Features`."""

CORE_RANGE = (-1.5, 1.0)
ENOUGH_DETAILS = 2
MANY_DETAILS = 3

NOUNS = tuple(noun for nouns in CATEGORIES.values() for noun in nouns)
CATEGORY_OF = {noun: category for category, nouns in CATEGORIES.items() for noun in nouns}
ADJECTIVES = tuple(word for pair in OPPOSITES for word in pair)
OPPOSITE_OF = {a: b for x, y in OPPOSITES for a, b in ((x, y), (y, x))}
FILLER = frozenset(("the", "a", "an", "and", "is", "are", "it", ",", ":"))


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(category: str) -> str:
    return category + "s"


# ------------------------------------------------------------------------------------------------------ instructions


@dataclass(frozen=True, slots=True)
class Task:
    """The task that an instruction sets.

    `right` are the content words of a right core, in order ("list" instead draws `count` of `allowed`); `topic` is the
    category that details describe, and `forbidden` are adjectives that they must not use.
    """

    family: str
    topic: str
    right: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    count: int = 0
    forbidden: tuple[str, ...] = ()

    @property
    def allowed(self) -> tuple[str, ...]:
        """Words a list may have: its category's, without those in the input."""
        return tuple(noun for noun in CATEGORIES[self.topic] if noun not in self.others)

    @property
    def true_details(self) -> tuple[str, ...]:
        return tuple(word for word in TRUE_OF[self.topic] if word not in self.forbidden)


def draw_instruction(random: Random) -> Instruction:
    """Draw an instruction: a family with equal chances, then its words."""
    return _DRAW[random.choice(FAMILIES)](random)


def _draw_list(random: Random) -> Instruction:
    category = random.choice(tuple(CATEGORIES))
    seen = random.sample(CATEGORIES[category], random.choice((2, 3)))
    return Instruction(
        f"List {random.choice(tuple(COUNTS))} {plural(category)} that are not in the input.", ", ".join(seen)
    )


def _draw_opposite(random: Random) -> Instruction:
    pairs = random.sample(OPPOSITES, random.choice((1, 2)))
    words = " and ".join(random.choice(pair) for pair in pairs)
    return Instruction(f"Give the opposite of {words}, then describe the {random.choice(NOUNS)}.")


def _draw_which(random: Random) -> Instruction:
    category = random.choice(tuple(CATEGORIES))
    others = random.sample([noun for noun in NOUNS if CATEGORY_OF[noun] != category], 2)
    words = [random.choice(CATEGORIES[category]), *others]
    random.shuffle(words)
    return Instruction(f"Which word in the input is {with_article(category)}?", ", ".join(words))


def _draw_describe(random: Random) -> Instruction:
    first, second = random.sample(ADJECTIVES, 2)
    return Instruction(f"Describe the {random.choice(NOUNS)} without the words {first} and {second}.")


def _draw_is(random: Random) -> Instruction:
    nouns = random.sample(NOUNS, 2)
    claims = [CATEGORY_OF[noun] for noun in nouns]
    if random.random() < 0.5:
        false = random.choice((0, 1))
        claims[false] = random.choice([c for c in CATEGORIES if c != claims[false]])
    first, second = (f"the {noun} {with_article(claim)}" for noun, claim in zip(nouns, claims, strict=True))
    return Instruction(f"Is {first} and {second}?")


_DRAW = {
    "list": _draw_list,
    "opposite": _draw_opposite,
    "which": _draw_which,
    "describe": _draw_describe,
    "is": _draw_is,
}

_LIST = re.compile(r"list (\w+) (\w+)s that are not in the input")
_OPPOSITE = re.compile(r"give the opposite of (\w+)(?: and (\w+))?\s?, then describe the (\w+)")
_WHICH = re.compile(r"which word in the input is an? (\w+)")
_DESCRIBE = re.compile(r"describe the (\w+) without the words (\w+) and (\w+)")
_IS = re.compile(r"is the (\w+) an? (\w+) and the (\w+) an? (\w+)")


@lru_cache(maxsize=65536)
def read_task(instruction: str, given: str = "") -> Task:
    """Parse an instruction and its input. Raises `DataError` if it is not of this world."""
    text = instruction.strip().lower().rstrip(".? ")
    words = tuple(re.findall(r"\w+", given.lower()))
    try:
        if match := _LIST.fullmatch(text):
            _ = CATEGORIES[match[2]]
            return Task("list", match[2], others=words, count=COUNTS[match[1]])
        if match := _OPPOSITE.fullmatch(text):
            adjectives = tuple(word for word in match.group(1, 2) if word)
            return Task("opposite", CATEGORY_OF[match[3]], tuple(OPPOSITE_OF[word] for word in adjectives), adjectives)
        if match := _WHICH.fullmatch(text):
            (answer,) = [word for word in words if CATEGORY_OF[word] == match[1]]
            return Task("which", match[1], (answer,), tuple(word for word in words if word != answer))
        if match := _DESCRIBE.fullmatch(text):
            topic = CATEGORY_OF[match[1]]
            return Task("describe", topic, (match[1], topic), forbidden=(match[2], match[3]))
        if match := _IS.fullmatch(text):
            true = CATEGORY_OF[match[1]] == match[2] and CATEGORY_OF[match[3]] == match[4]
            return Task("is", CATEGORY_OF[match[1]], ("yes" if true else "no",))
    except (KeyError, ValueError):
        pass
    shown = f"{instruction} / {given}" if given else instruction
    raise DataError(
        f"the toy world does not know the instruction {shown[:120]!r}: its gold reward and crowd judge only the data "
        "set 'toy'; for others: --judge offline:text_utility, or --annotator reward:text_utility, and --set "
        "evaluate.evaluators=[win_rate,reward]"
    )


# ------------------------------------------------------------------------------------------------------- gold reward


@dataclass(frozen=True, slots=True)
class Features:
    """Features of an answer. All but `core`, `unfinished` and `words` are counts of sentences.

    `core` lies in CORE_RANGE, 1 is right. `detail` counts the first two distinct true details (a third earns nothing),
    `surplus` those after the third, `wrong` false or forbidden ones, `repeated` ones said before, `junk` sentences that
    say nothing, `beyond_three` all details after the third. `unfinished` is 1 without a final stop.
    """

    core: float
    detail: int = 0
    surplus: int = 0
    wrong: int = 0
    repeated: int = 0
    junk: int = 0
    unfinished: int = 0
    beyond_three: int = 0
    words: int = 0


def read_answer(task: Task, answer: str) -> Features:
    """Read any text as an answer to `task`. Never raises: an unreadable sentence is wrong or junk."""
    tokens = re.findall(r"\w+|[^\w\s]", answer.lower())
    first, *rest = _sentences(tokens)
    good: set[str] = set()
    said: set[str] = set()
    wrong = repeated = junk = details = 0
    for sentence in rest:
        adjective = _detail(sentence)
        if adjective is None:
            junk += 1
            continue
        details += 1
        if adjective in said:
            repeated += 1
        elif adjective in task.true_details:
            good.add(adjective)
        else:
            wrong += 1
        said.add(adjective)
    return Features(
        core=_core(task, [word for word in first if word not in FILLER]),
        detail=min(len(good), ENOUGH_DETAILS),
        surplus=max(0, len(good) - MANY_DETAILS),
        wrong=wrong,
        repeated=repeated,
        junk=junk,
        unfinished=int(tokens[-1:] != ["."]),
        beyond_three=max(0, details - MANY_DETAILS),
        words=len(tokens),
    )


def _sentences(tokens: list[str]) -> list[list[str]]:
    sentences: list[list[str]] = [[]]
    for token in tokens:
        if token == ".":
            sentences.append([])
        else:
            sentences[-1].append(token)
    return [sentences[0], *(s for s in sentences[1:] if s)]


def _detail(sentence: list[str]) -> str | None:
    """Return the adjective of a sentence such as "it is big" or "they look big"; else None."""
    if len(sentence) == 3 and tuple(sentence[:2]) in DETAIL_OPENINGS and sentence[2] in OPPOSITE_OF:
        return sentence[2]
    return None


DETAIL_OPENINGS = (("it", "is"), ("it", "looks"), ("they", "are"), ("they", "look"))


def _core(task: Task, words: list[str]) -> float:
    low, high = CORE_RANGE
    if task.family == "list":
        right = set(words) & set(task.allowed)
        slips = max(len(words), task.count) - min(len(right), task.count)
    else:
        matched = sum(a == b for a, b in zip(words, task.right, strict=False))
        slips = max(len(words), len(task.right)) - matched
    partly_right = task.family in ("list", "opposite") and max(task.count, len(task.right)) > 1
    return max(low, high - slips * (high - low) / (2 if partly_right else 1))


def reward(features: Features) -> float:
    """Sum the gold reward. A right core with two true details and a final stop earns 2.2."""
    return sum(weight * getattr(features, name) for name, weight in GOLD.items())


def gold(instruction: Instruction, answer: str) -> float:
    """Return the gold reward of any text as an answer. Raises `DataError` if the instruction is unknown."""
    return reward(read_answer(read_task(instruction.instruction, instruction.input), answer))


def grade(features: Features) -> str:
    """Return "wrong" (core), "slip" (a flaw elsewhere) or "fine", which the base learns. Blind to length."""
    if features.core < CORE_RANGE[1]:
        return "wrong"
    flawed = features.wrong or features.repeated or features.junk or features.unfinished
    return "slip" if flawed else "fine"
