"""Every problem of a run that can be seen before its first stage, so that all are reported at once.

No model is loaded here and no network asked: the stages do that themselves when they are laid out, before any runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from afarm.core.errors import AfarmError, ConfigError, DataError, JudgeError, did_you_mean
from afarm.experiment.dry_run import require_fitting_judges, require_method_judge
from afarm.experiment.judge_choices import choices_of_run, describe_choices
from afarm.experiment.preferences import require_preferences
from afarm.experiment.return_checks import problems_seen
from afarm.experiment.training_stages import NEEDS, require_enough_to_fit, require_method
from afarm.experiment.workspace import Workspace
from afarm.judging.database import is_url
from afarm.judging.return_checks import identify_judge
from afarm.judging.sqlite_database import require_usable
from afarm.storage.disk import require_writable
from afarm.storage.model_files import require_local
from afarm.storage.prompt_templates import read_prompt_template

ASKING = ("annotate", "fit-reward", "train")
"""The stages that make training preferences first, and so ask judges."""

LABELS = frozenset({"annotator", "preferences", "reward_model"})
"""The needs of methods that are served by labels of pairs."""

Check = Callable[[Workspace], object]
"""A look at one thing. Yields what is wrong with it, or raises an `AfarmError` that says so."""


def run_checks(llm_systems: Sequence[str] = (), names_method: bool = True) -> list[Check]:
    """Return the checks of a run: data, model, device, method, and judges but for their keys.

    `llm_systems` are judge LLMs that will answer the instructions themselves, by their specs. A method that is still to
    be named is checked when it is.
    """
    return [
        *_training(),
        *([_method] if names_method else []),
        _rows,
        *([_enough_for_method] if names_method else []),
        require_preferences,
        _check_tasks,
        _ratings,
        *_judges("evaluate", "annotate", choices=choices_of_run, llm_systems=llm_systems, trains=names_method),
        _noise_once,
        _evaluators,
    ]


def stage_checks(stage: str) -> list[Check]:
    """Return the checks of one stage with those before it: sft, sample, annotate, fit-reward or train."""
    checks: list[Check] = [*_training(), partial(_rows, stage=stage)]
    if stage in ASKING:
        choices = partial(choices_of_run, stage=stage)
        checks += [require_preferences, *_judges("annotate", choices=choices, trains=stage == "train"), _noise_once]
    return [*checks, _method, _enough_for_method] if stage == "train" else checks


def reading_checks() -> list[Check]:
    """Return the checks of what only evaluates judgements that are there."""
    return [_places, _evaluators]


def judging_checks(choices: Callable[[Workspace], str] = describe_choices) -> list[Check]:
    """Return the checks of what only judges outputs that are there: no data, model or torch is looked for.

    If no judge is named, the problem is what `choices` returns.
    """
    return [*reading_checks(), *_judges("evaluate", choices=choices)]


def access_checks(llm_systems: Sequence[str] = (), stage: str = "") -> list[Check]:
    """Return the checks that judges can be asked, which a dry run and a `stage` that asks none do without."""
    checks: list[Check] = [_ledger, partial(require_access, llm_systems=llm_systems)]
    checks += [_method_is_capped] if stage in ("", "train") else []
    return checks if stage in ("", *ASKING) else []


def _training() -> list[Check]:
    return [
        _places,
        lambda workspace: require_local(workspace.config.model),
        lambda workspace: read_prompt_template(workspace.config.prompt_template),
        _device,
        lambda workspace: workspace.components.engine(),
        _trackers,
        lambda workspace: workspace.data.dataset,
    ]


def _judges(
    *sections: str, choices: Callable[[Workspace], str], llm_systems: Sequence[str] = (), trains: bool = False
) -> list[Check]:
    """Return the checks of the judges, and of who asks them: annotators, and the method if it `trains`."""

    def annotators(workspace: Workspace) -> list[str]:
        config = workspace.config
        needs = workspace.components.method(config.method).needs if sections == ("annotate",) and trains else LABELS
        unasked = {"annotate"} if config.preferences or LABELS.isdisjoint(needs) else set()
        return [getattr(config, section).annotator for section in sections if section not in unasked]

    def require_judges(workspace: Workspace) -> None:
        try:
            require_fitting_judges(workspace, annotators(workspace))
            if trains:
                require_method_judge(workspace, workspace.config.method)
        except JudgeError as error:
            if workspace.judges.by_role:
                raise
            raise ConfigError(choices(workspace)) from error

    return [
        partial(_used_prices, llm_systems=llm_systems),
        require_judges,
        lambda workspace: workspace.judges.by_role,
        lambda workspace: failures(partial(workspace.components.annotator, name) for name in annotators(workspace)),
    ]


def list_problems(workspace: Workspace, checks: Iterable[Check]) -> list[str]:
    """List the problems that the checks find, each as a sentence."""
    return list(dict.fromkeys(failures(partial(check, workspace) for check in checks)))


def failures(looks: Iterable[Callable[[], object]]) -> Iterator[str]:
    """Yield each problem that the looks yield or raise, as a sentence."""
    for look in looks:
        try:
            found = look()
            if isinstance(found, Iterator):
                yield from found
        except ConfigError as error:
            yield from error.problems
        except AfarmError as error:
            yield str(error)


def _places(workspace: Workspace) -> None:
    """Look at the output directory and the shared store, which must be writable."""
    require_writable(workspace.store.root)
    if workspace.store.shared:
        workspace.store.shared.require_usable()


def _ledger(workspace: Workspace) -> None:
    """Look at a ledger file, which must be writable; a database says so when it is opened."""
    place = workspace.judges.ledger_place
    if not is_url(place) and (place != workspace.store.ledger_path or Path(place).exists()):  # else of the output's own
        require_usable(Path(place))


def _method(workspace: Workspace) -> None:
    """Look at the run's method: its needs must be met, and its settings fit."""
    require_method(workspace.components, workspace.config.method)


def _method_is_capped(workspace: Workspace) -> None:
    """Look for a method that asks a judge while it trains at prices that no budget caps."""
    with suppress(JudgeError):  # without a judge, which another check says
        require_method_judge(workspace, workspace.config.method, is_capped=True)


def _noise_once(workspace: Workspace) -> Iterator[str]:
    """A calibrated pool's labels, which have noise, are not flipped as well."""
    config, settings = workspace.config, workspace.config.annotate
    if settings.label_noise and not config.preferences:
        name = settings.annotator
        if getattr(workspace.components.annotator(name), "has_own_noise", False):
            yield f"annotate.label_noise is {settings.label_noise:g}, and {name} has its noise: add --label-noise 0"


def _evaluators(workspace: Workspace) -> Iterator[str]:
    return failures(partial(workspace.components.evaluator, name) for name in workspace.config.evaluate.evaluators)


def _device(workspace: Workspace) -> None:
    """Look for the device. The CPU is always there, and `auto` takes what is."""
    if workspace.config.backend.device not in ("auto", "cpu"):
        _ = workspace.components.backend


def _trackers(workspace: Workspace) -> Iterator[str]:
    """Look for trackers that are unknown or not installed: accelerate would leave them out."""
    names = workspace.config.backend.trackers
    if not names:
        return
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as error:
        yield f"backend.trackers needs {error.name!r}: pip install 'afarm[train]'"
        return
    known = {str(name) for name in LOGGER_TYPE_TO_CLASS}
    for name in names:
        if name in {"all", *map(str, get_available_trackers())}:
            continue
        if name in known:
            yield f"backend.trackers: {name} is not installed: pip install {name}"
        else:
            yield f"backend.trackers: unknown tracker {name!r}.{did_you_mean(name, known)}"


def _rows(workspace: Workspace, stage: str = "") -> Iterator[str]:
    """Look for splits that do not hold what the run, or a `stage` of it, asks of them.

    A split that is missing is left to the stage that needs it: `afarm sft` does without most. If another does not
    hold enough either, or none is there, all problems are listed at once. Remote data sets are not read.
    """
    if workspace.data.remote:
        return
    needed = list(dict.fromkeys(_splits_needed(workspace, stage)))
    missing: dict[str, str] = {}
    problems: list[str] = []
    for split in needed:
        try:
            workspace.data.listed(split)
        except DataError as error:
            missing[split] = str(error)
            continue
        problems += failures([partial(workspace.data.instructions, split)])
    yield from problems
    if problems or len(missing) == len(needed):
        yield from dict.fromkeys(missing.values())


def _enough_for_method(workspace: Workspace) -> None:
    """Look if there are enough instructions to fit the reward model that the method needs."""
    components, run = workspace.components, workspace.config
    if workspace.data.remote or "reward_model" not in components.method(run.method).needs:
        return
    if components.learned_part(run.reward_model):
        require_enough_to_fit(workspace)


def _check_tasks(workspace: Workspace) -> Iterator[str]:
    """Ask each judge and evaluator if it knows the run's instructions."""
    if workspace.data.remote:
        return
    try:
        instructions = workspace.data.instructions(workspace.data.evaluated_on)
    except DataError:  # which `_rows` or the stage that reads them reports
        return
    for name in workspace.config.evaluate.evaluators:
        evaluator = workspace.components.evaluator(name)
        for problem in problems_seen(partial(evaluator.check, instructions), "evaluators", name, evaluator):
            yield f"evaluator {name!r}: {problem}"
    for role, judge in workspace.judges.by_role.items():
        for problem in problems_seen(partial(judge.check, instructions), "judges", identify_judge(judge), judge):
            yield f"judge of {'all roles' if role == '*' else role}: {problem}"


def _ratings(workspace: Workspace) -> Iterator[str]:
    """Look for evaluators of ratings where the annotator that judges gives none."""
    settings, components = workspace.config.evaluate, workspace.components
    names = [name for name in settings.evaluators if "ratings" in components.evaluator(name).needs]
    if names and not components.annotator(settings.annotator).rates:
        for name in names:
            yield (
                f"evaluator {name!r}: needs ratings, and annotator {settings.annotator!r} gives none: let one judge "
                "that rates each output alone, with --set evaluate.annotator=ratings, or criteria"
            )


def require_access(workspace: Workspace, llm_systems: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for judges that cannot be asked, for want of a key, say."""
    problems: list[str] = []
    for judge in (*workspace.judges.by_role.values(), *map(workspace.judges.judge, llm_systems)):
        problems += problems_seen(judge.check_access, "judges", identify_judge(judge), judge)
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def _used_prices(workspace: Workspace, llm_systems: Sequence[str] = ()) -> Iterator[str]:
    """Look for a price of a judge that is not in use: most likely a misspelt name."""
    used = {*workspace.judges.specs.values(), *llm_systems}
    for spec in workspace.config.price:
        if spec not in used:
            yield f"--price names {spec!r}, which is none of the judges.{did_you_mean(spec, used)}"


def _splits_needed(workspace: Workspace, stage: str = "") -> Iterator[str]:
    """Yield the splits that the whole run reads, or a `stage` of it with those before."""
    config = workspace.config
    needs = {"demonstrations"} if config.start == "sft" else set()
    if stage in ("", "train"):
        needs |= workspace.components.method(config.method).needs
    elif stage != "sft":
        needs.add("preferences")
    if "reward_model" in needs and workspace.components.learned_part(config.reward_model):
        needs.add("preferences")
    yield from (split for need, splits in NEEDS.items() if need in needs for split in splits)
    if {"preferences", "feedback"} & needs and not config.preferences:
        yield "preference"
    if not stage:
        yield workspace.data.evaluated_on
