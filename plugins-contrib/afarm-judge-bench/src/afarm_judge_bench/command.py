"""`afarm judge bench`: several judges on one benchmark, by their own answers or by stored ones."""

# Annotations are evaluated here: Typer reads them.

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import AfarmError, BudgetError, ConfigError, DataError, JudgeError, named_file, seeding
from afarm.cli.options import (
    DryRun,
    FarmOptions,
    complete_recipes,
    err,
    option,
    out,
    print_json,
    show_plan,
    with_options,
    write_examples,
)

if TYPE_CHECKING:
    from afarm.experiments import Workspace
    from afarm_judge_bench.items import BenchSet
    from afarm_judge_bench.verdicts import Verdicts

ASKS = "chatgpt_2"
"""One pair a prompt, reasons before the verdict, and no log-probabilities needed."""
REWARD = "reward:"

HIDDEN = (
    *("method", "annotator", "both_orders", "votes", "vote", "label_noise", "judge", "reward_model", "recipe"),
    *("model", "dataset", "data", "preferences", "on_unusable", "eval_set", "accelerate_config", "store"),
)
"""Options of farms that measure nothing here, or that this command has in a form of its own."""


def add_commands(app: typer.Typer) -> None:
    group = typer.Typer()
    examples = write_examples(
        "judge bench",
        "natural=LLMBar/Natural/dataset.json --judge openai:gpt-4o --judge openai:gpt-4o-mini --budget 2",
        "judgebench.jsonl --answers o1-mini=judgments.jsonl --annotator fitted",
        "mine.jsonl --annotator gpt4_4 --judge local:MODEL --limit 100",
    )
    group.command("bench", epilog=examples)(with_options(bench, without=HIDDEN))
    app.add_typer(group, name="judge")


@dataclass(frozen=True)
class Contestant:
    """An annotator that is measured, with the judges that it asks by role."""

    annotator: str
    judges: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join((self.annotator, *self.judges))


def bench(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files of one benchmark, as FILE, NAME=FILE or hf:OWNER/NAME[:SPLIT]: JudgeBench, LLMBar, PandaLM, "
            "Auto-J, RewardBench 2, or pairs of your own with labels.",
            metavar="FILE",
        ),
    ],
    judge: Annotated[
        list[str] | None,
        option("--judge NAME:MODEL", "A judge to measure; repeatable. ROLE=NAME:SPEC serves all of them.", "judges"),
    ] = None,
    annotator: Annotated[
        list[str] | None,
        option("--annotator NAME", "Who asks, or judges itself; repeatable.", "annotators", f"{ASKS} for --judge"),
    ] = None,
    reward_model: Annotated[
        list[str] | None,
        option("--reward-model NAME", "A reward model to measure, or a fitted one's directory.", "reward_models"),
    ] = None,
    answers: Annotated[
        list[str] | None,
        option("--answers NAME=FILE", "Stored answers of JudgeBench, PandaLM or RewardBench; repeatable."),
    ] = None,
    limit: Annotated[
        int | None, option("--limit N", "Measure on N rows alone, drawn by --seed.", None, "all", min=1)
    ] = None,
    recipe: Annotated[
        str, option("--recipe NAME|FILE", "The recipe of the judges' settings.", complete_recipes)
    ] = "outputs",
    output: Annotated[
        Path | None, option("--output FILE", "Also write all figures, and every row with its verdicts (.json).")
    ] = None,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Measure judges on pairs with a known better output, before they are trusted."""
    from afarm_judge_bench.sets import read_set
    from afarm_judge_bench.stored import read_stored

    if output is not None and (output.suffix != ".json" or output.is_dir()):
        raise ConfigError([f"--output {output}: must be a file in .json"])
    given = replace(options, recipe=recipe, judge=judge)
    whole = read_set(files, options.labels)
    stored = [read_stored(name, path, whole) for name, path in map(named_file, answers or [])]
    bench_set, chosen = draw(whole, limit, options.seed or 0)
    stored = [replace(one, pairs=pick(one.pairs, chosen), scores=pick(one.scores, chosen)) for one in stored]
    contestants = list_contestants(given, judge or [], annotator or [], reward_model or [])
    names = [one.name for one in contestants] + [one.name for one in stored]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError([f"{sorted(twice)[0]} is named twice: name each judge once, stored answers as NAME=FILE"])
    if not names:
        options_to_add = "--judge NAME:MODEL, --annotator NAME, --reward-model NAME, or --answers NAME=FILE"
        raise ConfigError([f"no judge to measure: add {options_to_add}"])
    if dry_run:
        _show_plans(given, contestants, bench_set)
        return
    found, failed = list(stored), list[str]()
    stop: AfarmError | None = None
    with ExitStack() as opened:
        for contestant, workspace in _open_all(given, contestants, opened):
            try:
                found.append(_measure_one(workspace, contestant, bench_set))
            except BudgetError as error:
                stop = error
                break
            except (JudgeError, DataError, ConfigError) as error:
                failed.append(f"{contestant.name}: {error}")
    if found:
        _show(found, bench_set, len(whole.items) + len(whole.groups), options.as_json, output)
    if stop:
        raise stop
    if failed:
        raise JudgeError(f"no figures of {len(failed)} of {len(names)} judges:\n  " + "\n  ".join(failed))


def draw(whole: "BenchSet", limit: int | None, seed: int) -> "tuple[BenchSet, list[int]]":
    """Draw `limit` rows of a set by their ids, a larger limit more; return their numbers.

    RewardBench 2's ref:7 and tied:7 are drawn one after the other: without its partner neither has its whole score.
    """
    rows = whole.groups or whole.items
    names = [row.id.rpartition(":")[2] for row in rows]
    order = sorted(range(len(rows)), key=lambda n: seeding.uniform(seed, "judge bench rows", names[n]))
    chosen = sorted(order[:limit])
    if len(chosen) == len(rows):
        return whole, chosen
    return replace(whole, items=pick(whole.items, chosen), groups=pick(whole.groups, chosen), published=None), chosen


def pick(rows: Sequence[Any], chosen: Sequence[int]) -> tuple[Any, ...]:
    """Return the rows of these numbers; of none, none."""
    return tuple(rows[number] for number in chosen) if rows else ()


def list_contestants(
    options: FarmOptions, judges: Sequence[str], annotators: Sequence[str], reward_models: Sequence[str]
) -> list[Contestant]:
    """List who is measured: each annotator that asks with each judge, and those that ask nobody.

    Raises `ConfigError` for an annotator that needs a judge if none is named.
    """
    roles = tuple(one for one in judges if "=" in one.partition(":")[0])
    measured = [one for one in judges if one not in roles]
    alone = [name for name in annotators if asks_nobody(options, name)]
    asking = [name for name in annotators if name not in alone] or [ASKS] * bool(measured)
    found = [Contestant(name) for name in alone]
    for name in asking:
        found += [Contestant(name, (one, *roles)) for one in measured] or [Contestant(name, roles)]
    return [*found, *(Contestant(f"{REWARD}{name}") for name in reward_models)]


def asks_nobody(options: FarmOptions, annotator: str) -> bool:
    """Tell if an annotator can be opened where no judge is named."""
    from afarm.experiments import judging_checks

    try:
        with options_of(options, Contestant(annotator)).judging_workspace(judging_checks()):
            return True
    except (ConfigError, JudgeError):
        return False


def options_of(options: FarmOptions, contestant: Contestant) -> FarmOptions:
    """Return the options of a workspace in which one contestant judges; `options` name the judges of all."""
    meant = f"evaluate.annotator={json.dumps(contestant.annotator)}"
    others = {_spec(judge) for judge in options.judge or ()} - {_spec(judge) for judge in contestant.judges}
    return replace(
        options,
        labels=None,
        judge=list(contestant.judges) or None,
        price=[price for price in options.price or () if price.rpartition("=")[0] not in others],
        settings=[meant, *(options.settings or [])],
    )


def _spec(judge: str) -> str:
    """The spec of a judge as after --judge, without a role."""
    return judge.partition("=")[2] if "=" in judge.partition(":")[0] else judge


def _open_all(
    options: FarmOptions, contestants: Sequence[Contestant], opened: ExitStack
) -> "list[tuple[Contestant, Workspace]]":
    """Open a workspace for each before any is asked. Raises `ConfigError` with all problems."""
    found, problems = [], dict[str, None]()
    for contestant in contestants:
        try:
            found.append((contestant, opened.enter_context(options_of(options, contestant).judging_workspace())))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(problems)
    return found


def _measure_one(workspace: "Workspace", contestant: Contestant, bench_set: "BenchSet") -> "Verdicts":
    from afarm_judge_bench.verdicts import ask_scores, ask_verdicts, score_by_model

    err().print(f"{contestant.name} …", markup=False)
    account = f"judge-bench-{bench_set.name.replace(' ', '-').lower()}"  # a killed command goes on with it
    with workspace.judges.client.charge_run(account):
        if not bench_set.groups:
            pairs = [item.pair for item in bench_set.items]
            found = ask_verdicts(workspace, contestant.annotator, contestant.name, pairs)
            if all(verdict is None for pair in found.pairs for verdict in pair):
                export = "what the judge wrote: afarm ledger --export FILE"
                raise JudgeError("; ".join(["none of its verdicts can be read", *found.notes, export]))
            return found
        if contestant.annotator.startswith(REWARD):
            return score_by_model(workspace, contestant.annotator.removeprefix(REWARD), bench_set.groups)
        return ask_scores(workspace, contestant.annotator, contestant.name, bench_set.groups)


def _show_plans(options: FarmOptions, contestants: Sequence[Contestant], bench_set: "BenchSet") -> None:
    """Show what each judge would be asked, and what it may cost; send nothing."""
    from afarm import AnnotateContext
    from afarm.experiments import PlannedStage, estimates, judging_checks, reading_client
    from afarm_judge_bench.verdicts import plan_verdicts

    planned: list[PlannedStage] = []
    pairs = [item.pair for item in bench_set.items]
    pairs += [replace(pair, occurrence=n) for n, group in enumerate(bench_set.groups) for pair in group.pairs]
    for number, contestant in enumerate(contestants, start=1):
        with options_of(options, contestant).dry_run(judging_checks()) as workspace:
            client = reading_client(workspace, workspace.judges.by_role)
            context = AnnotateContext(workspace.seed("judge bench"), client)
            requests: Any = plan_verdicts(workspace, contestant.annotator, pairs, context)
            planned.append(PlannedStage("bench", contestant.name, False, "", estimates(client, [requests])))
            if number == len(contestants):
                show_plan(workspace, "", options.as_json, planned=planned, step="judge bench")
    if not contestants:
        out().print("Stored answers alone: nothing is asked.")


def _show(
    found: "Sequence[Verdicts]", bench_set: "BenchSet", rows: int, as_json: bool, output: Path | None = None
) -> None:
    from afarm_judge_bench.best_of import compare_groups, measure_groups
    from afarm_judge_bench.kept import write_measured
    from afarm_judge_bench.measure import compare_judges, measure
    from afarm_judge_bench.screen import show

    of_groups = bool(bench_set.groups)
    figures = [measure_groups(one, bench_set) if of_groups else measure(one, bench_set) for one in found]
    differences = (compare_groups if of_groups else compare_judges)(found, bench_set)
    document = {
        "benchmark": bench_set.name,
        "rows": len(bench_set.items) + len(bench_set.groups),
        "rows_of_file": rows,
        "score": bench_set.score,
        "judges": [asdict(one) for one in figures],
        "differences": [asdict(one) for one in differences],
        "published": dict(bench_set.published or {}),
        "published_in": bench_set.published_in,
    }
    if output is not None:
        write_measured(output, document, found, bench_set)
        err().print(f"Written to {output}", markup=False)
    if as_json:
        print_json(document)
    else:
        show(figures, differences, bench_set, rows)
