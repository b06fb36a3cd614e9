"""The toy world: its instructions, its gold reward against numbers worked by hand, its authors and its data set."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afarm.core.errors import DataError
from afarm.core.records import Instruction
from afarm_plugins.toy import ToyConfig, world
from afarm_plugins.toy.authors import CAREFUL, CARELESS, EDITOR, write_answer
from afarm_plugins.toy.dataset import SPLITS, ToyDataset

WHICH = Instruction("Which word in the input is a tree?", "fox, oak, drum")
LIST = Instruction("List three animals that are not in the input.", "fox, cat")
TWO_OPPOSITES = Instruction("Give the opposite of hot and big, then describe the fox.")
ONE_OPPOSITE = Instruction("Give the opposite of hot, then describe the fox.")
DESCRIBE = Instruction("Describe the fox without the words wild and hot.")
IS_TRUE = Instruction("Is the fox an animal and the oak a tree?")
IS_FALSE = Instruction("Is the fox an animal and the oak a tool?")


@pytest.mark.parametrize(
    ("instruction", "answer", "expected"),
    [
        (WHICH, "oak.", 1.2),
        (WHICH, "oak", 1.2 - 0.3),  # no final stop
        (WHICH, "fox.", -1.8),  # 1.2 times the lowest core
        (WHICH, "oak. it is big. it looks wild.", 1.2 + 2 * 0.5),
        (WHICH, "oak. it is big. it looks wild. it is hard.", 2.2),  # a third detail earns nothing
        (WHICH, "oak. it is big. it is wild. it is hard. it is quiet.", 2.2 - 0.5 - 0.25),
        (WHICH, "oak. it is big. it is big.", 1.2 + 0.5 - 0.7),
        (WHICH, "oak. it is sweet.", 1.2 - 0.7),
        (WHICH, "oak. it is sweet. it is sweet.", 1.2 - 0.7 - 0.7),
        (WHICH, "oak. thank you.", 1.2 - 0.6),
        (LIST, "dog, bear and wolf.", 1.2),
        (LIST, "dog, bear and fox.", 1.2 * -0.25),  # one of the input's words
        (LIST, "dog, bear and oak.", 1.2 * -0.25),
        (LIST, "dog and bear.", 1.2 * -0.25),  # one too few
        (LIST, "dog, bear, wolf and lion.", 1.2 * -0.25),  # one too many
        (LIST, "dog, dog and bear. they are fast.", 1.2 * -0.25 + 0.5),
        (LIST, "oak, pine and elm.", -1.8),
        (TWO_OPPOSITES, "cold and small. it is fast.", 1.2 + 0.5),
        (TWO_OPPOSITES, "cold and hard.", 1.2 * -0.25),
        (TWO_OPPOSITES, "small and cold.", -1.8),  # in the order asked for
        (ONE_OPPOSITE, "cold.", 1.2),
        (ONE_OPPOSITE, "hot.", -1.8),
        (DESCRIBE, "the fox is an animal. it is soft.", 1.2 + 0.5),
        (DESCRIBE, "the fox is an animal. it is wild.", 1.2 - 0.7),  # true, but not to be said
        (DESCRIBE, "the fox is a tree.", -1.8),
        (IS_TRUE, "yes.", 1.2),
        (IS_TRUE, "no.", -1.8),
        (IS_FALSE, "no. it is soft.", 1.2 + 0.5),
        (IS_FALSE, "", -1.8 - 0.3),
    ],
)
def test_gold_reward_by_hand(instruction: Instruction, answer: str, expected: float) -> None:
    assert world.gold(instruction, answer) == pytest.approx(expected)


def test_spacing_case_and_line_breaks_change_no_reward() -> None:
    answer = "oak. it is big. it looks wild."
    for variant in (
        "oak . it is big . it looks wild .",
        "OAK. It is BIG.\nIt looks wild.",
        "  oak.it is big.it looks wild. ",
    ):
        assert world.gold(WHICH, variant) == world.gold(WHICH, answer)


@given(st.text(max_size=200))
def test_any_text_has_a_finite_reward(text: str) -> None:
    for instruction in (WHICH, LIST, TWO_OPPOSITES, DESCRIBE, IS_TRUE):
        assert -200 < world.gold(instruction, text) <= 2.2


def test_huge_text_is_scored() -> None:
    assert world.gold(WHICH, "oak. " * 50_000) < -1000
    assert world.gold(WHICH, "💥\u202e\ud800" * 1000) < 0


@pytest.mark.parametrize(
    "instruction",
    [
        "",
        "Write a poem.",
        "Which word in the input is a planet?",
        "List nine animals that are not in the input.",
        "describe the",
    ],
)
def test_foreign_instruction_is_an_error_that_names_the_way_out(instruction: str) -> None:
    with pytest.raises(DataError, match="text_utility"):
        world.gold(Instruction(instruction), "oak.")


def test_every_drawn_instruction_is_read_back_and_answerable() -> None:
    random = Random("read back")
    seen = set()
    for _ in range(2000):
        instruction = world.draw_instruction(random)
        task = world.read_task(instruction.instruction, instruction.input)
        seen.add(task.family)
        answer = write_answer(task, EDITOR, random)
        features = world.read_answer(task, answer)
        assert features.core == 1, (instruction, answer)
        assert world.grade(features) == "fine"
    assert seen == set(world.FAMILIES)


def test_careful_authors_earn_more_and_write_about_as_long() -> None:
    random = Random("authors")
    earned: dict[str, list[float]] = {"careful": [], "careless": []}
    words: dict[str, list[int]] = {"careful": [], "careless": []}
    for _ in range(2000):
        instruction = world.draw_instruction(random)
        task = world.read_task(instruction.instruction, instruction.input)
        for name, author in (("careful", CAREFUL), ("careless", CARELESS)):
            answer = write_answer(task, author, random)
            earned[name].append(world.gold(instruction, answer))
            words[name].append(len(answer.split()))
    assert fmean(earned["careful"]) > fmean(earned["careless"]) + 1.2
    assert abs(fmean(words["careful"]) - fmean(words["careless"])) < 1


def test_splits_have_their_sizes_and_share_no_instruction() -> None:
    rows = {split: ToyDataset().load(split) for split in SPLITS}
    assert {split: len(loaded) for split, loaded in rows.items()} == {
        "sft": 4000,
        "preference": 4000,
        "unlabeled": 4000,
        "validation": 500,
        "evaluation": 805,
    }
    ids = [row.instruction.id for loaded in rows.values() for row in loaded]
    assert len(set(ids)) == len(ids)
    for loaded in rows.values():
        assert all(row.output for row in loaded)


def test_both_kinds_of_prompt_occur() -> None:
    with_input = [bool(row.instruction.input) for row in ToyDataset().load("evaluation")]
    assert 0.3 < fmean(with_input) < 0.5


def test_data_set_repeats_itself_and_a_world_seed_changes_it() -> None:
    assert ToyDataset().load("sft")[:50] == ToyDataset(ToyConfig()).load("sft")[:50]
    other = ToyDataset(ToyConfig(world_seed=1)).load("sft")
    assert other[:50] != ToyDataset().load("sft")[:50]


def test_evaluation_split_does_not_depend_on_the_sizes_of_training_splits() -> None:
    assert ToyDataset(ToyConfig(sft=10, preference=20)).load("evaluation") == ToyDataset().load("evaluation")


def test_bad_splits_are_errors() -> None:
    with pytest.raises(DataError, match="Did you mean 'validation'"):
        ToyDataset().load("validate")
    with pytest.raises(DataError, match=r"toy\.unlabeled"):
        ToyDataset(ToyConfig(unlabeled=0)).load("unlabeled")
