"""Every problem of a run that can be seen before its first stage, so that all are reported at once.

No model is loaded here and no network asked: the stages do that themselves when they are laid out, before any runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from afarm.core.errors import AfarmError, ConfigError, DataError, PluginError, did_you_mean
from afarm.experiment.dry_run import require_fitting_judges
from afarm.experiment.preferences import require_preferences
from afarm.experiment.promises import problems_seen
from afarm.experiment.settings import RunConfig
from afarm.experiment.training_stages import NEEDS, require_enough_to_fit, require_method
from afarm.experiment.workspace import Workspace
from afarm.judging.database import is_url
from afarm.judging.promises import identify_judge
from afarm.judging.sqlite_database import require_usable
from afarm.storage.disk import require_writable
from afarm.storage.model_files import require_local
from afarm.storage.prompt_templates import read_prompt_template

ASKING = ("annotate", "fit-reward", "train")
"""The stages that make training preferences first, and so ask judges."""

Check = Callable[[Workspace], object]
"""A look at one thing. Raises an `AfarmError` that says what is wrong with it."""


def run_checks(llm_systems: Sequence[str] = ()) -> list[Check]:
    """Return the checks of a run: data, model, device, method, and judges but for their keys.

    `llm_systems` are judge LLMs that will answer the instructions themselves, by their specs.
    """
    return [
        *_training(),
        require_method_of_run,
        require_rows,
        require_enough_for_method,
        require_preferences,
        require_known_tasks,
        require_ratings,
        *_judges(_list_run_annotators, llm_systems),
        require_noise_once,
        require_evaluators,
    ]


def farm_checks() -> list[Check]:
    """Return the checks of a run whose method is still to be named: its own check is made when it is."""
    return [check for check in run_checks() if check not in (require_method_of_run, require_enough_for_method)]


def stage_checks(stage: str) -> list[Check]:
    """Return the checks of one stage with those before it: sft, sample, annotate, fit-reward or train."""
    checks: list[Check] = [*_training(), partial(require_rows, stage=stage)]
    if stage in ASKING:
        checks += [require_preferences, *_judges(_training_annotators), require_noise_once]
    return [*checks, require_method_of_run, require_enough_for_method] if stage == "train" else checks


def _training() -> list[Check]:
    return [
        _places,
        lambda workspace: require_local(workspace.config.model),
        lambda workspace: read_prompt_template(workspace.config.prompt_template),
        require_device,
        lambda workspace: workspace.components.engine(),
        lambda workspace: require_trackers(workspace.config.backend.trackers),
        lambda workspace: workspace.data.dataset,
    ]


def require_method_of_run(workspace: Workspace) -> None:
    """Raise `ConfigError` if the needs of the run's method are not met, or its settings do not fit."""
    require_method(workspace.components, workspace.config.method)


def _training_annotators(config: RunConfig) -> list[str]:
    return [] if config.preferences else [config.annotate.annotator]


def _list_run_annotators(config: RunConfig) -> list[str]:
    """List the annotators of the evaluation, and of the training pairs unless these are labelled already."""
    return [config.evaluate.annotator, *_training_annotators(config)]


def judging_checks() -> list[Check]:
    """Return the checks of what only judges outputs that are there: no data, model or torch is looked for."""
    return [_places, *_judges(lambda config: [config.evaluate.annotator]), require_evaluators]


def access_checks(llm_systems: Sequence[str] = (), stage: str = "") -> list[Check]:
    """Return the checks that judges can be asked, which a dry run and a `stage` that asks none do without."""
    return [_ledger, partial(require_access, llm_systems=llm_systems)] if stage in ("", *ASKING) else []


def _places(workspace: Workspace) -> None:
    """Raise `StoreError` for an output directory or a shared store that cannot be written."""
    require_writable(workspace.store.root)
    if workspace.store.shared:
        workspace.store.shared.require_usable()


def _ledger(workspace: Workspace) -> None:
    """Raise `StoreError` for a ledger file that cannot be written; a database says so when it is opened."""
    place = workspace.judges.ledger_place
    if not is_url(place) and (place != workspace.store.ledger_path or Path(place).exists()):  # else of the output's own
        require_usable(Path(place))


def _judges(annotators: Callable[[RunConfig], Sequence[str]], llm_systems: Sequence[str] = ()) -> list[Check]:
    """The checks of the judges, and of those `annotators` that a configuration names."""
    return [
        partial(require_used_prices, llm_systems=llm_systems),
        lambda workspace: require_fitting_judges(workspace, annotators(workspace.config)),
        lambda workspace: workspace.judges.by_role,
        lambda workspace: require_buildable(workspace, annotators(workspace.config)),
    ]


def list_problems(workspace: Workspace, checks: Iterable[Check]) -> list[str]:
    """List the problems that the checks find, each as a sentence."""
    return list(dict.fromkeys(failures(partial(check, workspace) for check in checks)))


def failures(looks: Iterable[Callable[[], object]]) -> Iterator[str]:
    """Yield each problem that the looks find, as a sentence."""
    for look in looks:
        try:
            look()
        except ConfigError as error:
            yield from error.problems
        except AfarmError as error:
            yield str(error)
        except ValidationError:
            pass  # a wrong setting of that plugin, which `resolve` reports


def require_buildable(workspace: Workspace, annotators: Sequence[str]) -> None:
    """Raise `ConfigError` for annotators that cannot be built from their settings."""
    if problems := list(failures(partial(workspace.components.annotator, name) for name in annotators)):
        raise ConfigError(problems)


def require_noise_once(workspace: Workspace) -> None:
    """Raise `ConfigError` if a calibrated pool's labels, which have noise, would be flipped as well."""
    settings = workspace.config.annotate
    for name in _training_annotators(workspace.config) if settings.label_noise else ():
        if getattr(workspace.components.annotator(name), "has_own_noise", False):
            raise ConfigError(
                [f"annotate.label_noise is {settings.label_noise:g}, and {name} has its noise: add --label-noise 0"]
            )


def require_evaluators(workspace: Workspace) -> None:
    """Raise `ConfigError` for evaluators that cannot be built from their settings."""
    names = workspace.config.evaluate.evaluators
    if problems := list(failures(partial(workspace.components.evaluator, name) for name in names)):
        raise ConfigError(problems)


def require_device(workspace: Workspace) -> None:
    """Raise `ConfigError` if the device is not there. The CPU always is, and `auto` takes what is."""
    if workspace.config.backend.device in ("auto", "cpu"):
        return
    try:
        _ = workspace.components.backend
    except PluginError as error:  # no torch to ask
        raise ConfigError([str(error)]) from error


def require_trackers(names: Sequence[str]) -> None:
    """Raise `ConfigError` for trackers that are unknown or not installed: accelerate would leave them out."""
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


def require_rows(workspace: Workspace, stage: str = "") -> None:
    """Raise `ConfigError` for splits that do not hold what the run, or a `stage` of it, asks of them.

    A split that is missing is left to the stage that needs it: `afarm sft` does without most. If another does not
    hold enough either, or none is there, all of that is said at once. What comes over the network is left alone.
    """
    if workspace.data.remote:
        return
    needed = list(dict.fromkeys(splits_needed(workspace, stage)))
    missing: dict[str, str] = {}
    problems: list[str] = []
    for split in needed:
        try:
            workspace.data.listed(split)
        except DataError as error:
            missing[split] = str(error)
            continue
        try:
            workspace.data.instructions(split)
        except DataError as error:
            problems.append(str(error))
    if problems or len(missing) == len(needed):
        problems += dict.fromkeys(missing.values())
    if problems:
        raise ConfigError(problems)


def require_enough_for_method(workspace: Workspace) -> None:
    """Raise `ConfigError` if the method needs a reward model and has too few instructions to fit it."""
    components, run = workspace.components, workspace.config
    if workspace.data.remote or "reward_model" not in components.method(run.method).needs:
        return
    if components.reward_model_class(run.reward_model).is_fitted():
        require_enough_to_fit(workspace)


def require_known_tasks(workspace: Workspace) -> None:
    """Raise `ConfigError` if a judge or an evaluator says that it knows nothing of the run's instructions."""
    if workspace.data.remote:
        return
    try:
        instructions = workspace.data.instructions(workspace.data.evaluated_on)
    except DataError:  # which `require_rows` or the stage that reads them reports
        return
    evaluators = [(name, workspace.components.evaluator(name)) for name in workspace.config.evaluate.evaluators]
    problems: list[str] = []
    for name, evaluator in evaluators:
        found = problems_seen(partial(evaluator.check, instructions), "evaluators", name, evaluator)
        problems += [f"evaluator {name!r}: {problem}" for problem in found]
    for role, judge in workspace.judges.by_role.items():
        found = problems_seen(partial(judge.check, instructions), "judges", identify_judge(judge), judge)
        problems += [f"judge of {'all roles' if role == '*' else role}: {problem}" for problem in found]
    if problems:
        raise ConfigError(problems)


def require_ratings(workspace: Workspace) -> None:
    """Raise `ConfigError` for evaluators of ratings where the annotator that judges gives none."""
    settings = workspace.config.evaluate
    names = [name for name in settings.evaluators if "ratings" in workspace.components.evaluator(name).needs]
    if names and not workspace.components.annotator(settings.annotator).rates:
        raise ConfigError([f"evaluator {name!r}: {no_ratings(settings.annotator)}" for name in names])


def no_ratings(annotator: str) -> str:
    """Say what to do about an annotator that does not rate."""
    return (
        f"needs ratings, and annotator {annotator!r} gives none: let one judge that rates each output alone, with "
        "--set evaluate.annotator=ratings, or criteria"
    )


def require_access(workspace: Workspace, llm_systems: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for judges that cannot be asked, for want of a key, say."""
    judges = [*workspace.judges.by_role.values(), *map(workspace.judges.judge, llm_systems)]
    seen = [problems_seen(judge.check_access, "judges", identify_judge(judge), judge) for judge in judges]
    if problems := [problem for found in seen for problem in found]:
        raise ConfigError(dict.fromkeys(problems))


def require_used_prices(workspace: Workspace, llm_systems: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for a price of a judge that is not in use: most likely a misspelt name."""
    run = workspace.config
    used = {*run.judge.values(), *llm_systems}
    problems = [
        f"--price names {spec!r}, which is none of the judges.{did_you_mean(spec, used)}"
        for spec in run.price
        if spec not in used
    ]
    if problems:
        raise ConfigError(problems)


def splits_needed(workspace: Workspace, stage: str = "") -> Iterator[str]:
    """Yield the splits that the whole run reads, or a `stage` of it with those before."""
    config = workspace.config
    needs = {"demonstrations"} if config.start == "sft" else set()
    if stage in ("", "train"):
        needs |= workspace.components.method(config.method).needs
    elif stage != "sft":
        needs.add("preferences")
    if "reward_model" in needs and workspace.components.reward_model_class(config.reward_model).is_fitted():
        needs.add("preferences")
    yield from (split for need, splits in NEEDS.items() if need in needs for split in splits)
    if "preferences" in needs and not config.preferences:
        yield "preference"
    if not stage:
        yield workspace.data.evaluated_on
