"""What the result screen and the report say of how training ended."""

from __future__ import annotations

from afarm.report.run import chosen_checkpoints, training


def test_the_best_checkpoint_is_shown_beside_the_last() -> None:
    found = {
        "best/step": 30,
        "best/win_rate": 68.25,
        "best/standard_error": 3.29,
        "last/step": 40,
        "last/win_rate": 66.5,
    }
    expected = "the best on validation, of step 30: 68.2 % ± 3.3 (the last, of step 40: 66.5 %)"
    assert list(training(found)) == [expected]
    del found["best/standard_error"]
    assert "68.2 % (the last" in next(training(found))


def test_why_training_stopped_is_shown_with_or_without_a_choice() -> None:
    (line,) = training({"stopped/max_kl": 17})
    assert "stopped at step 17: the KL exceeded its limit" in line
    assert "not finite" in next(training({"stopped/not_finite": 3}))


def test_a_method_that_chooses_nothing_has_no_such_line() -> None:
    assert list(training({})) == []


def test_prompts_that_were_left_out_are_counted() -> None:
    assert list(training({"data/prompts_left_out": 77.0})) == ["77 prompts were too long and left out"]
    assert list(training({"data/prompts_left_out": 0.0})) == []


def test_a_board_says_whose_checkpoints_were_chosen_and_what_labels_that_took() -> None:
    ppo = {"method": "ppo", "checkpoint": {"best/labels": 1600.0, "best/step": 30}}
    records = [ppo, ppo | {"checkpoint": {"best/labels": 1400.0}}, {"method": "dpo", "checkpoint": {}}]
    (line,) = chosen_checkpoints(records)
    assert line.startswith("ppo (1,600 further labels): the best of its checkpoints")
    assert list(chosen_checkpoints(records[2:])) == []
