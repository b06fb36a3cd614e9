"""What can be seen to go wrong before the first stage, so that it is all reported at once.

No model is loaded here and no network asked: the stages do that themselves when they are laid out, before any runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from afarm.core.errors import AfarmError, ConfigError, DataError, PluginError, attributed_to, did_you_mean
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import Judge
from afarm.core.records import Instruction, Pair
from afarm.experiment import training_stages as stages
from afarm.experiment.components import Components, is_fitted
from afarm.experiment.data import DataSplits
from afarm.judging.dispatch import misfits, unpriced
from afarm.storage.disk import require_writable


def problems_ahead(
    components: Components,
    splits: DataSplits,
    output_dir: Path,
    compares_only: bool = False,
    plans_only: bool = False,
    answering: Sequence[str] = (),
) -> list[str]:
    """Each problem as a sentence, beside the unknown names and wrong settings that `recipe.resolve` finds.

    With `compares_only` nothing is asked of what trains, samples or holds data, and torch is not loaded; with
    `plans_only`, whether judges could be asked. `answering` are judges that will answer the instructions themselves.
    """
    from afarm.storage.model_files import require_local

    config = components.settings.run
    annotators = [config.evaluate.annotator, *([] if compares_only else [config.annotate.annotator])]
    training: list[Callable[[], object]] = [
        lambda: require_local(config.model),
        lambda: require_device(components),
        lambda: require_trackers(config.backend.trackers),
        lambda: stages.check_method(components, config.method),
        lambda: splits.dataset,
        lambda: require_rows(components, splits),
        lambda: require_known_tasks(components, splits),
        lambda: require_ratings(components),
    ]
    looks: list[Callable[[], object]] = [
        lambda: require_writable(output_dir),
        *([] if compares_only else training),
        lambda: require_used_prices(components, answering),
        *([] if plans_only else [lambda: require_access(components, answering)]),
        lambda: require_fitting_judges(components, annotators),
        components.judges,
        *(lambda name=name: components.annotator(name) for name in annotators),
        *(lambda name=name: components.evaluator(name) for name in config.evaluate.evaluators),
    ]
    problems: list[str] = []
    for look in looks:
        try:
            look()
        except ConfigError as error:
            problems += error.problems
        except AfarmError as error:
            problems.append(str(error))
        except ValidationError:
            pass  # a wrong setting of that plugin, which `resolve` reports
    return list(dict.fromkeys(problems))


def require_device(components: Components) -> None:
    """Raises `ConfigError` where the device is not there. The CPU always is, and `auto` takes what is."""
    if components.settings.run.backend.device in ("auto", "cpu"):
        return
    try:
        _ = components.backend
    except PluginError as error:  # no torch to ask
        raise ConfigError([str(error)]) from error


def require_trackers(names: Sequence[str]) -> None:
    """Raises `ConfigError` naming the trackers that are unknown or not installed, which accelerate would leave out."""
    if not names:
        return
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as error:
        raise ConfigError([f"backend.trackers needs {error.name!r}: pip install 'afarm[train]'"]) from error
    known = {str(name) for name in LOGGER_TYPE_TO_CLASS}
    installed = {str(name) for name in get_available_trackers()}
    problems = [
        f"backend.trackers: {name} is not installed: pip install {name}"
        if name in known
        else f"backend.trackers: unknown tracker {name!r}.{did_you_mean(name, known)}"
        for name in names
        if name not in installed | {"all"}
    ]
    if problems:
        raise ConfigError(problems)


def require_rows(components: Components, splits: DataSplits) -> None:
    """Raises `ConfigError` for splits that do not hold what the run asks of them.

    A split that is missing is left to the stage that needs it: `afarm sft` does without most. Where another does not
    hold enough either, or none is there, all of that is said at once. What comes over the network is left alone.
    """
    if splits.remote:
        return
    needed = list(dict.fromkeys(splits_needed(components)))
    missing: dict[str, str] = {}
    problems: list[str] = []
    for split in needed:
        try:
            splits.load(split)
        except DataError as error:
            missing[split] = str(error)
            continue
        try:
            splits.rows(split)
        except DataError as error:
            problems.append(str(error))
    if problems or len(missing) == len(needed):
        problems += dict.fromkeys(missing.values())
    if problems:
        raise ConfigError(problems)


def require_known_tasks(components: Components, splits: DataSplits) -> None:
    """Raises `ConfigError` where a judge or an evaluator says that it knows nothing of the run's instructions."""
    if splits.remote:
        return
    try:
        instructions = splits.instructions("evaluation")
    except DataError:  # which `require_rows` or the stage that reads them reports
        return
    evaluators = [(name, components.evaluator(name)) for name in components.settings.run.evaluate.evaluators]
    problems = [f"evaluator {name!r}: {p}" for name, evaluator in evaluators for p in evaluator.check(instructions)]
    for role, judge in components.judges().items():
        problems += [f"judge of {'all roles' if role == '*' else role}: {p}" for p in judge.check(instructions)]
    if problems:
        raise ConfigError(problems)


def require_ratings(components: Components) -> None:
    """Raises `ConfigError` for evaluators of ratings where the annotator that judges gives none."""
    settings = components.settings.run.evaluate
    names = [name for name in settings.evaluators if "ratings" in components.evaluator(name).needs]
    if names and not components.annotator(settings.annotator).rates:
        raise ConfigError([f"evaluator {name!r}: {no_ratings(settings.annotator)}" for name in names])


def no_ratings(annotator: str) -> str:
    """What to do about an annotator that does not rate."""
    return (
        f"needs ratings, and annotator {annotator!r} gives none: let one judge that rates each output alone, with "
        "--set evaluate.annotator=ratings, or criteria"
    )


def require_access(components: Components, answering: Sequence[str] = ()) -> None:
    """Raises `ConfigError` for judges that cannot be asked, for want of a key, say."""
    judges = [*components.judges().values(), *map(components.judge, answering)]
    if problems := [problem for judge in judges for problem in judge.check_access()]:
        raise ConfigError(dict.fromkeys(problems))


def require_used_prices(components: Components, answering: Sequence[str] = ()) -> None:
    """Raises `ConfigError` for a price of a judge that is not in use: most likely a name that is spelled otherwise."""
    run = components.settings.run
    used = {*run.judge.values(), *answering}
    problems = [
        f"--price names {spec!r}, which is none of the judges.{did_you_mean(spec, used)}"
        for spec in run.price
        if spec not in used
    ]
    if problems:
        raise ConfigError(problems)


STAND_INS = 512
"""Made-up pairs that a pool is asked about to see all its members: at 13 members, one is missed once in 10^17 times."""


def require_fitting_judges(components: Components, annotators: Sequence[str]) -> None:
    """Raises `ConfigError` for judges that cannot take what `annotators` ask for, unless that may be left out, for
    judges of unknown price where there is a budget to keep, and for --batch-api where nobody asked takes batches."""
    from afarm.judging.client import JudgeClient
    from afarm.judging.ledger import Ledger

    run = components.settings.run
    pairs = [
        Pair(Instruction(f"stand-in {i}", "input" if i % 2 else ""), "an output", "another one")
        for i in range(STAND_INS)
    ]
    problems: list[str] = []
    asked: dict[str, Judge] = {}
    with Ledger(Path(":memory:")) as nothing:
        ask = JudgeClient(components.judges(), nothing, allow_degraded=True)
        for name in dict.fromkeys(annotators):
            try:
                annotator = components.annotator(name)
                with attributed_to("annotators", name):
                    requests = annotator.plan(pairs, AnnotateContext(0, ask))
            except DataError:  # one that knows the instructions of its own world only
                continue
            for request in requests:
                asked[request.role] = ask.judge_of(request.role)
                if not run.allow_degraded:
                    problems += misfits(request, ask.judge_of(request.role))
                if run.budget is not None and ask.worst_case_price(request) is None:
                    problems.append(unpriced(run.judge.get(request.role) or run.judge["*"]))
    if run.batch_api and asked and not any(judge.capabilities.batch for judge in asked.values()):
        who = " and ".join(dict.fromkeys(judge.identity for judge in asked.values()))
        problems.append(f"--batch-api: no batch endpoint is known of {who}: leave the option out")
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def splits_needed(components: Components) -> Iterator[str]:
    """The splits that the whole run reads, from the first demonstration to the evaluation."""
    config = components.settings.run
    needs = set(components.method(config.method).needs)
    if config.start == "sft":
        needs.add("demonstrations")
    if "reward_model" in needs and is_fitted(components.reward_model_class(config.reward_model)):
        needs.add("preferences")
    yield from (split for need, splits in stages.NEEDS.items() if need in needs for split in splits)
    if "preferences" in needs:
        yield "preference"
    yield "evaluation"
