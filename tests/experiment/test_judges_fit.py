"""Judges that cannot take what annotators ask for, and prices that nobody knows, are found before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from light_farm import Make, light_farm
from light_plugin import RAN, CountingJudge

from afarm.core.errors import ConfigError
from afarm.core.judge import Capabilities
from afarm.experiment.dry_run import by_judge, plan_run

PLAIN = Capabilities(chat=True, completion=True, temperature=False, logit_bias=False)


def problems(tmp_path: Path, **choices: object) -> list[str]:
    RAN.clear()
    with pytest.raises(ConfigError) as caught:
        light_farm(tmp_path, **choices)
    assert RAN == []
    assert CountingJudge.asked == 0
    return caught.value.problems


@pytest.fixture(autouse=True)
def nothing_is_asked() -> None:
    CountingJudge.asked = 0


def test_every_member_of_the_pool_that_asks_for_too_much_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "capabilities", PLAIN)
    found = problems(tmp_path)
    assert all("--allow-degraded" in problem and "takes no" in problem for problem in found)
    named = {name for problem in found for name in problem.split("which ")[1].split(" ask")[0].split(", ")}
    assert {"chatgpt_1", "davinci003_1 and gpt4_4"} <= named
    assert any("logit_bias" in problem for problem in found)
    farm = light_farm(tmp_path, allow_degraded=True)
    farm.close()


def test_a_budget_is_refused_before_anything_runs_where_a_price_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "worst_case_price", lambda self, request: None)
    (found,) = problems(tmp_path, budget=5.0)
    assert "price of counting is unknown" in found
    assert "--price counting=INPUT/OUTPUT" in found
    light_farm(tmp_path).close()


def test_batches_are_refused_where_no_judge_that_is_asked_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = problems(tmp_path, batch_api=True)
    assert found == "--batch-api: no batch endpoint is known of counting:: leave the option out"
    monkeypatch.setattr(CountingJudge, "capabilities", replace(CountingJudge.capabilities, batch=True))
    light_farm(tmp_path, batch_api=True).close()


def test_a_price_for_a_judge_that_is_not_in_use_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, price={"countng": "1/2"})
    assert "'countng'" in found
    assert "Did you mean 'counting'" in found
    assert "is not of the form" in problems(tmp_path, price={"counting": "cheap"})[0]


def test_an_estimate_adds_up_over_stages_and_is_never_more_than_the_worst_case(farm: Make) -> None:
    one = farm()
    planned = plan_run(one.workspace, "nudge")
    (total,) = by_judge(planned)
    assert total.calls == sum(stage.calls for stage in planned) > 0
    assert total.most_dollars == pytest.approx(sum(stage.most_dollars or 0.0 for stage in planned))
    assert 0 < total.output_tokens <= total.most_output_tokens
    assert total.input_tokens > 0
    assert CountingJudge.asked == 0


def test_looking_at_prices_counts_nothing_as_reused(farm: Make) -> None:
    one = farm()
    one.annotate()
    before = one.workspace.judges.client.ledger.read("SELECT COUNT(*) FROM reuse")
    again = farm()
    plan_run(again.workspace, "nudge")
    assert again.workspace.judges.client.ledger.read("SELECT COUNT(*) FROM reuse") == before
    assert again.workspace.judges.client.spend.judgements_reused == 0
