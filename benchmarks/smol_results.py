"""The tables of docs/notes/smol-results.md: each method on a real model, under its judge and by readings beside it.

    python -m benchmarks.smol_results --model FILE.gguf --data FILE --second second --encoder minilm --seeds 42 43

Reuses what `afarm run` with the same options made in `--output-dir`, and makes what is missing. `--second` is a judge
fitted to other labels (repeatable); the encoder tells how close outputs are to the file's own answers. All figures
compare with the starting model on the evaluation instructions; ± is a standard error over these.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from afarm import EvaluationInputs, Farm, Output, Result
from afarm.evaluation.metrics import standard_error
from afarm.evaluation.statistics.paired import holm, paired_difference
from afarm_plugins.fitted_judges.encoder import SentenceEncoder, relatedness

QUESTIONS = (
    "Explain to a child why the sky is blue.",
    "Give three tips for sleeping better.",
    "How do I get a coffee stain out of a shirt?",
    "Write two sentences about a river in autumn.",
    "What is the difference between a virus and a bacterium?",
    "Suggest a name for a bakery, and say why.",
)
"""Instructions of our own for the table of outputs, fixed before any was answered."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--methods", nargs="+", default=["best_of_n", "ppo", "dpo", "quark", "expert_iteration"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--second", nargs="+", default=[], metavar="DIR")
    parser.add_argument("--encoder", metavar="DIR")
    parser.add_argument("--output-dir", type=Path, default=Path("afarm-runs"))
    parser.add_argument("--set", action="append", default=[], dest="settings")
    a = parser.parse_args()
    given = {"model": a.model, "dataset": "files", "files": {"path": a.data}}
    encoder = SentenceEncoder(a.encoder) if a.encoder else None
    for seed in a.seeds:
        with Farm("smol", seed=seed, settings=[given, *a.settings], output_dir=a.output_dir) as farm:
            print(f"Seed {seed}", *figures(farm, a.methods, a.second, encoder), "", sep="\n", flush=True)
            if seed == a.seeds[0]:
                asked = answers(farm, [name for name in a.methods if name != "best_of_n"])
                print(*asked, "", sep="\n", flush=True)


def figures(farm: Farm, methods: Sequence[str], judges: Sequence[str], encoder: SentenceEncoder | None) -> list[str]:
    """A row per method: win rates by the run's judge and by `judges`, reward, closeness, characters, finished.

    *Expected* is the win rate by the probabilities that the judge draws its labels with. Below, its paired differences.
    """
    before = farm.outputs(farm.workspace.start_name)
    closeness = Closeness(farm, encoder) if encoder else None
    heads = [
        "",
        "win rate",
        "expected",
        *(Path(judge).name for judge in judges),
        "Δ reward",
        "Δ closeness",
        "characters",
        "ended",
    ]
    own = ["the model", "", "", *("" for _ in judges), "", "", characters(before), ended(before)]
    lines = [row(heads), row(["---"] * len(heads)), row(own)]
    by_instruction: dict[str, Mapping[str, float]] = {}
    for method in methods:
        result, after = farm.evaluate(method), farm.outputs(method)
        readings = [second_reading(farm, judge, result, before, after) for judge in judges]
        reward = f"{result.metric('reward_difference'):+.2f} ± {result.metric('reward_difference_se'):.2f}"
        gain = mean(closeness.gains(before, after), "+.3f") if closeness else ""
        rate = f"{result.win_rate:.1f} ± {result.standard_error:.1f}"
        expected = f"{result.metric('fitted_win_rate'):.1f} ± {result.metric('fitted_standard_error'):.1f}"
        lines.append(row([method, rate, expected, *readings, reward, gain, characters(after), ended(after)]))
        by_instruction[method] = result.by_instruction("fitted")
    return [*lines, "", *differences(by_instruction)]


def differences(systems: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The difference of each two systems in points, paired by instruction, with p adjusted for all of them (Holm)."""
    pairs = list(combinations(systems, 2))
    table = {name: [values[asked] for asked in next(iter(systems.values()))] for name, values in systems.items()}
    found = [paired_difference(table[one], table[other]) for one, other in pairs]
    adjusted = holm([1.0 if gap.p_value is None else gap.p_value for gap in found])
    return [
        f"{one} less {other}: {gap.value:+.1f} ± {gap.error or 0.0:.1f}, p {p:.2g}"
        for (one, other), gap, p in zip(pairs, found, adjusted, strict=True)
    ]


def second_reading(farm: Farm, judge: str, result: Result, before: Sequence[Output], after: Sequence[Output]) -> str:
    """The win rate that another fitted judge expects of the same pairs."""
    judgements = result.judgements[farm.workspace.start_name]
    read = farm.workspace.components.evaluator(f"fitted:{judge}").evaluate(
        EvaluationInputs(result.system, after, before, judgements)
    )
    return f"{read.metrics['fitted_win_rate']:.1f} ± {read.metrics['fitted_standard_error']:.1f}"


class Closeness:
    """Cosine of an output's embedding with that of the file's own answer, by instruction."""

    def __init__(self, farm: Farm, encoder: SentenceEncoder):
        self.encoder = encoder
        self.references = {o.instruction.id: o.output for o in farm.workspace.data.rows("evaluation")}

    def gains(self, before: Sequence[Output], after: Sequence[Output]) -> list[float]:
        return [y - x for x, y in zip(self._of(before), self._of(after), strict=True)]

    def _of(self, outputs: Sequence[Output]) -> list[float]:
        answers = self.encoder.embed([self.references[output.instruction.id] for output in outputs])
        embedded = self.encoder.embed([output.output for output in outputs])
        return [relatedness(answer, vector) for answer, vector in zip(answers, embedded, strict=True)]


def answers(farm: Farm, methods: Sequence[str]) -> list[str]:
    """The first answer drawn to each of our questions, by the model and by each method's policy."""
    policies = [farm.sft(), *(farm.train(method) for method in methods)]
    limit = farm.workspace.config.evaluate.max_new_tokens
    columns = [policy.generate(QUESTIONS, temperature=0.7, max_new_tokens=limit) for policy in policies]
    lines = [row(["asked", "the model", *methods]), row(["---"] * (2 + len(methods)))]
    by_question = zip(QUESTIONS, *columns, strict=True)
    return ["", *lines, *(row([asked, *map(in_a_cell, texts)]) for asked, *texts in by_question)]


def in_a_cell(text: str) -> str:
    return text.strip().replace("|", r"\|").replace("\n", "<br>")


def characters(outputs: Sequence[Output]) -> str:
    return f"{statistics.fmean(len(output.output) for output in outputs):.0f}"


def ended(outputs: Sequence[Output]) -> str:
    """Percent that ended by themselves: the others were cut off."""
    return f"{100 * statistics.fmean(output.details.get('finish_reason') == 'stop' for output in outputs):.0f}%"


def mean(values: Sequence[float], form: str) -> str:
    return f"{statistics.fmean(values):{form}} ± {standard_error(values) or 0.0:{form.lstrip('+')}}"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
