"""What comes out of the toy world: methods, over-optimisation, and how good the reward model is. Several seeds.

    python -m benchmarks.toy_results --seeds 1 2 3 --models DIR2 DIR3 --output-dir DIR

prints the tables of docs/notes/toy-results.md. Every setting is the toy recipe's; the long, weakly regularised PPO runs
change `ppo.kl_coef` and `ppo.total_steps` only. The first seed starts from the bundled base model and the others from
those of `--models` (`python -m tools.toy.train_base --seed 2 --output DIR2`), if any are given. Finished parts
are reused, so it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from afarm import Decoding, Evaluation, Farm, Output, compare_outputs
from afarm.core.records import JudgedPair

BEST_OF = (1, 4, 16, 64, 256)
LONG_STEPS = (20, 80, 200)
LONG_KL = 0.02
HELD_OUT = 2000
"""Preference instructions, the last ones, that no reward model is fitted on."""


def measure(seed: int, output_dir: Path, settings: list[str]) -> dict[str, float]:
    """All figures of one seed, flat."""
    found: dict[str, float] = {}
    with Farm("toy", seed=seed, output_dir=output_dir, settings=settings) as farm:
        found["labels against gold"] = label_accuracy(farm, farm.annotate())
        found["reward model against gold"] = reward_accuracy(farm)
        found["sft gold"] = gold(farm, farm.outputs("sft"))
        for method in ("ppo", "best_of_n"):
            result = farm.evaluate(method)
            for reference, evaluation in result.evaluations:
                if evaluation.evaluator == "win_rate":
                    record(found, f"{method} against {reference}", evaluation)
                if evaluation.evaluator == "gold" and reference == "sft":
                    found[f"{method} gold"] = float(evaluation.metrics["gold"] or 0)
        over_optimise_best_of_n(farm, found)
    for steps in LONG_STEPS:
        changed = [*settings, f"ppo.kl_coef={LONG_KL}", f"ppo.total_steps={steps}"]
        with Farm("toy", seed=seed, output_dir=output_dir, settings=changed) as farm:
            result = farm.evaluate("ppo")
            record(found, f"ppo kl {LONG_KL:g} steps {steps}", result.evaluations[0][1])
            found[f"ppo kl {LONG_KL:g} steps {steps} gold"] = result.metric("gold")
            found[f"ppo kl {LONG_KL:g} steps {steps} reward"] = result.metric("reward")
    return found


def record(found: dict[str, float], name: str, evaluation: Evaluation) -> None:
    found[name] = float(evaluation.metrics["win_rate"] or 0)
    found[f"{name} se"] = float(evaluation.metrics["standard_error"] or 0)


def gold(farm: Farm, outputs: Sequence[Output]) -> float:
    model = farm.workspace.components.fixed_reward_model("gold")
    return statistics.fmean(s.value for s in model.score([o.instruction for o in outputs], [o.output for o in outputs]))


def label_accuracy(farm: Farm, judged: Sequence[JudgedPair]) -> float:
    """Share of decided labels that agree with gold, pairs of equal gold left out."""
    model = farm.workspace.components.fixed_reward_model("gold")
    right = []
    for row in judged:
        if row.p2 is None:
            continue
        first, second = model.score([row.pair.instruction] * 2, [row.pair.output_1, row.pair.output_2])
        if first.value != second.value:
            right.append((row.p2 > 0.5) == (second.value > first.value))
    return 100 * statistics.fmean(right)


def reward_accuracy(farm: Farm) -> float:
    """Share of pairs of SFT samples (T = 1) ranked as gold ranks them, pairs of equal gold left out.

    On the last preference instructions, which the run leaves unused: nothing was trained on them.
    """
    data = farm.workspace.data
    rows = data.load("preference")[len(data.rows("preference")) :][-HELD_OUT:]
    instructions = [row.instruction for row in rows]
    decoding = Decoding(temperature=1.0, max_new_tokens=48, n=2, per_device_batch_size=512)
    texts = [s.text for s in farm.sft().sample(instructions, decoding, seed=farm.workspace.seed("reward accuracy"))]
    repeated = [i for i in instructions for _ in range(2)]
    truth = [s.value for s in farm.workspace.components.fixed_reward_model("gold").score(repeated, texts)]
    guess = [s.value for s in farm.fit_reward().score(repeated, texts)]
    right = [
        (guess[k] < guess[k + 1]) == (truth[k] < truth[k + 1])
        for k in range(0, len(texts), 2)
        if truth[k] != truth[k + 1]
    ]
    return 100 * statistics.fmean(right)


def over_optimise_best_of_n(farm: Farm, found: dict[str, float]) -> None:
    """One draw of the largest n: the best of its first n samples is what best-of-n would return."""
    instructions = farm.workspace.data.instructions("evaluation")
    decoding = Decoding(temperature=1.0, max_new_tokens=48, n=max(BEST_OF), per_device_batch_size=512)
    samples = farm.sft().sample(instructions, decoding, seed=farm.workspace.seed("best of n"))
    model, reference = farm.fit_reward(), farm.outputs("sft")
    chosen: dict[int, list[Output]] = {n: [] for n in BEST_OF}
    for instruction in instructions:
        texts = [next(samples).text for _ in range(decoding.n)]
        values = [s.value for s in model.score([instruction] * len(texts), texts)]
        for n in BEST_OF:
            best = max(range(n), key=values.__getitem__)
            chosen[n].append(Output(instruction, texts[best], f"best of {n}"))
    for n in BEST_OF:
        record(found, f"best of {n}", compare_outputs(chosen[n], reference, farm=farm).evaluations[0][1])
        found[f"best of {n} gold"] = gold(farm, chosen[n])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--models", nargs="+", default=[], help="base models for the seeds after the first")
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs/toy-results"))
    parser.add_argument("--annotator", help="label with this annotator and no noise, instead of the recipe's")
    arguments = parser.parse_args()
    labels = [f"annotate.annotator={arguments.annotator}", "annotate.label_noise=0"] if arguments.annotator else []
    tables = []
    for place, seed in enumerate(arguments.seeds):
        base = [f"model={arguments.models[place - 1]}"] if 0 < place <= len(arguments.models) else []
        tables.append(measure(seed, arguments.output_dir, [*labels, *base]))
        sys.stderr.write(json.dumps({"seed": seed, **tables[-1]}) + "\n")
    print("| | " + " | ".join(f"seed {s}" for s in arguments.seeds) + " | mean ± s.e. over seeds |")
    print("|---" * (len(arguments.seeds) + 2) + "|")
    for name in tables[0]:
        values = [t[name] for t in tables]
        spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
        print(
            f"| {name} | "
            + " | ".join(f"{v:.2f}" for v in values)
            + f" | {statistics.fmean(values):.2f} ± {spread:.2f} |"
        )


if __name__ == "__main__":
    main()
