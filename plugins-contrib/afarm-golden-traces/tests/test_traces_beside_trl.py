"""TRL's trainers, two steps of their own each on the traces' tokens: TRL 1.16, and PPO of TRL 1.12.

The dump of PPO is what `python examples/dump_trl.py tests/trl_1_12_ppo.json ppo trl` writes beside `trl==1.12.*`.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from afarm_golden_traces import check, read_dump

pytest.importorskip("trl")

PPO = Path(__file__).with_name("trl_1_12_ppo.json")

FOLLOW = {
    "dpo": ("", "ipo"),
    "grpo": ("", "bias_corrected_kl", "batch_scaled", "dapo", "dr_grpo", "gspo", "cispo"),
    "rloo": ("", "normalized"),
    "kto": ("", "apo_zero_unpaired"),
    "reward": ("", "margin", "centred"),
}
"""By method, the variants that TRL has."""


@pytest.fixture(scope="module")
def dump() -> Callable[..., dict[str, Any]]:
    """The example's function."""
    path = Path(__file__).parent.parent / "examples" / "dump_trl.py"
    spec = importlib.util.spec_from_file_location("dump_trl", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["dump_trl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., dict[str, Any]] = module.dump
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "variant"), [(method, v) for method, known in FOLLOW.items() for v in known])
def test_trainers_follow_the_traces(method: str, variant: str, dump: Callable[..., dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = dump(method, variant)
    report = check(method, made, tolerance=1e-5)
    assert report.follows, str(report)
    assert {"loss", "gradients", "parameters", "second/loss", "second/parameters"} <= set(report.checked)


def test_ppo_follows_its_variant_until_its_step_which_clips_no_gradients() -> None:
    made = read_dump(PPO)
    [one] = check("ppo", made).departures
    assert (one.quantity, one.cause) == ("parameters", "gradients are not clipped")
