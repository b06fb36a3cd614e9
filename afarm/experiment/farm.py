"""The experiment as an object: the Python API.

    farm = afarm.Farm(recipe="toy")
    policy = farm.train("ppo")        # SFT, samples, preferences and the reward model are made first, or reused
    result = farm.evaluate("ppo")     # result.win_rate, result.evaluations, result.judgements

What is missing is made, what is there is reused, live objects come back.

The command line is a thin face on this class. The stages are laid out in `afarm.experiment.pipeline`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any, Self

from afarm.core.errors import ConfigError
from afarm.core.interfaces import Policy, Progress, RewardModel
from afarm.core.plugins import Plugins, discover_with
from afarm.core.records import JudgedPair, Output, Pair, Preference
from afarm.experiment import pipeline, preflight
from afarm.experiment.annotation import OnlineAnnotator
from afarm.experiment.dry_run import require_method_judge
from afarm.experiment.llm_baselines import is_llm_system
from afarm.experiment.method_comparison import (
    MethodComparison,
    is_reference_system,
    listed_seeds,
    named_methods,
    require_win_rate,
    run_each,
)
from afarm.experiment.notebook import choose_display
from afarm.experiment.opening import open_workspace
from afarm.experiment.preferences import require_pairs
from afarm.experiment.recipe import Override, list_overrides
from afarm.experiment.result import Result, read_result
from afarm.experiment.run_record import record
from afarm.experiment.setting_errors import nearest_setting
from afarm.experiment.settings import RunConfig
from afarm.experiment.workspace import Workspace, ignore
from afarm.judging.database import fixed_place
from afarm.storage.hub import push_folder, require_token
from afarm.storage.named_code import name_code
from afarm.storage.rows import read_outputs, read_preferences
from afarm.storage.table import Records, html_table


class Farm:
    """One experiment: a recipe with its overrides, and a directory where everything it makes is kept.

    `workspace` has what is below these functions: the configuration, data, components, judges and the store. Models are
    loaded anew at each call, so keep what a function returns.
    """

    def __init__(
        self,
        recipe: str = "toy",
        *,
        settings: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] = (),
        output_dir: Path | str = "afarm-runs",
        ledger: Path | str | None = None,
        store: Path | str | None = None,
        model: str | Path | None = None,
        method: str | None = None,
        judge: str | Mapping[str, str] | None = None,
        annotator: str | None = None,
        seed: int | None = None,
        plugins: Plugins | str | Path | Iterable[str | Path] | None = None,
        progress: Progress | bool | None = None,
        **choices: Any,
    ):
        """Open a workspace for a run.

        Args:
            recipe: A recipe by name, or a YAML file.
            settings: Overrides, one or several, as `"ppo.learning_rate=1e-5"` or mappings (`{"ppo.kl_coef": 0.1}`).
            output_dir: Where everything is kept, even if the process changes its directory later.
            ledger: Where the answers of judges are kept: a file, or `postgresql://HOST/DATABASE` for processes of
                several machines; a file in `output_dir` if not given.
            store: Where artifacts are shared with other machines: `s3://BUCKET/FOLDER`, `gs://…` or a directory.
            model, method, judge, seed: The fields of `RunConfig`; the recipe's if not given.
            annotator: Short for `annotate.annotator`.
            plugins: Python files that are plugins beside those that are installed (`"mine.py"`), or all the plugins.
            progress: True shows bars and stages, False nothing, None (the default) both in notebooks; or what wraps
                each loop.
            **choices: Other fields of `RunConfig` (`preferences="mine.jsonl"`).

        Raises `ConfigError` with every problem at once, before any model is loaded.
        """
        named = {"model": model, "method": method, "judge": judge, "seed": seed}
        choices |= {name: value for name, value in named.items() if value is not None}
        chosen = as_overrides(settings, annotator=annotator, **choices)
        wraps, on_stage, self._tell = choose_display(progress)
        checks = preflight.run_checks(names_method="method" in choices)
        place = Path(output_dir).absolute()  # a notebook may change its directory: one store and one ledger stay
        shared = None if store is None else str(store)
        if shared and "://" not in shared:
            shared = str(Path(shared).absolute())
        accounts = None if ledger is None else fixed_place(ledger)

        loaded = plugins if isinstance(plugins, Plugins | None) else discover_with(plugins)

        def lay_out_run(method: str | None = None, seed: int | None = None) -> Workspace:
            return open_workspace(
                recipe,
                [*chosen, {name: value for name, value in (("method", method), ("seed", seed)) if value is not None}],
                place,
                checks=[*(preflight.run_checks() if method else checks), *preflight.access_checks()],
                plugins=loaded,
                progress=wraps,
                on_stage=on_stage,
                ledger=accounts,
                store=shared,
            )

        self._lay_out_run: Callable[[str | None, int | None], Workspace] | None = lay_out_run
        self.workspace = lay_out_run()

    @classmethod
    def over(cls, workspace: Workspace) -> Self:
        """Return the farm of a workspace that is open."""
        farm = cls.__new__(cls)
        farm._lay_out_run, farm._tell, farm.workspace = None, ignore, workspace
        return farm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def sft(self) -> Policy:
        """Return the policy that everything starts from: SFT on demonstrations, or the model (`start: model`)."""
        return self.workspace.load(self.workspace.ensure(pipeline.start(self.workspace)))

    def sample(self) -> Records[Output]:
        """Return the outputs to be compared, `sample.n` in turn for each preference instruction."""
        return Records(read_outputs(self.workspace.ensure(pipeline.sample(self.workspace)).path / "outputs.jsonl"))

    def annotate(self) -> Records[JudgedPair]:
        """Return the training preferences."""
        require_pairs(self.workspace, "Farm.annotate()")
        artifact = self.workspace.ensure(pipeline.annotate(self.workspace))
        return Records(read_preferences(artifact.path / "preferences.jsonl"))

    def fit_reward(self) -> RewardModel:
        """Return the reward model, fitted if it is one that learns."""
        stage = pipeline.fit_reward(self.workspace)
        return self.workspace.reward_model(self.workspace.ensure(stage) if stage else None)

    def train(self, method: str | None = None) -> Policy:
        """Return the policy learned by `method` (the recipe's, unless named), with all that it needs."""
        stage = pipeline.train(self.workspace, self._named(method))
        return self.workspace.load(self.workspace.ensure(stage))

    def outputs(self, method: str | None = None) -> Records[Output]:
        """Return the evaluation outputs of a method's policy, or of a judge LLM by its spec."""
        stage = pipeline.outputs(self.workspace, self._named(method))
        return Records(read_outputs(self.workspace.ensure(stage).path / "outputs.jsonl"))

    def evaluate(self, method: str | None = None) -> Result:
        """Compare a method's policy, or a judge LLM by its spec, with its reference."""
        name = self._named(method)
        stages = pipeline.evaluations(self.workspace, name)
        return read_result(name, [self.workspace.ensure(stage) for stage in stages])

    def _named(self, method: str | None) -> str:
        """Return the name of a method, or of the run's. Raises `ConfigError` as `require_method_judge`."""
        if method and method not in ("base", self.workspace.config.method) and not is_llm_system(method):
            require_method_judge(self.workspace, method, is_capped=True)
        return method or self.workspace.config.method

    def compare_methods(self, methods: str | Iterable[str], seeds: Iterable[int] = ()) -> MethodComparison:
        """Evaluate several methods, or one, on shared artifacts, for each of `seeds`, under one budget.

        Without `seeds`, that is the run's seed.

        A method that fails is named in `failed`, and the others go on. Raises `ConfigError` before anything runs if a
        method is unknown, cannot be run or is what the others are compared with, and `BudgetError` and `JudgeError` as
        they come.
        """
        names, numbers = named_methods(methods), listed_seeds(seeds) or [self.workspace.config.seed]
        if self._lay_out_run is None:
            raise ConfigError("compare_methods needs a farm made by afarm.Farm(…)")
        require_win_rate(self.workspace)
        if compared_with := [name for name in names if is_reference_system(self.workspace, name)]:
            raise ConfigError(f"{compared_with[0]!r} is what the others are compared with: leave it out")
        results: dict[tuple[str, int], Result] = {}
        failed: dict[tuple[str, int], str] = {}
        with ExitStack() as opened:
            lay_out_run = self._lay_out_run
            laid_out = [(name, opened.enter_context(lay_out_run(name, seed))) for seed in numbers for name in names]
            evaluated = run_each(laid_out, lambda name, workspace: Farm.over(workspace).evaluate(name), self._tell)
            for name, workspace, outcome in evaluated:
                system = (name, workspace.config.seed)
                if isinstance(outcome, Result):
                    results[system] = outcome
                else:
                    failed[system] = str(outcome)
        return MethodComparison(results, failed)

    def export(self, directory: Path | str, method: str | None = None, *, push_to_hub: str = "") -> Path:
        """Evaluate a method, and write its policy and data for other software to `directory`.

        What is written and raised is what `afarm.experiment.export.export_run` says; `push_to_hub` names a model
        repository of the Hub that it is uploaded to as well.
        """
        from afarm.experiment.export import export_run

        if push_to_hub:
            require_token(push_to_hub)
        name, started = method or self.workspace.config.method, time.time()
        run = record(self.workspace, name, self.evaluate(name), "", started)
        written = export_run(run, Path(directory), self.workspace.components.plugins)
        if push_to_hub:
            push_folder(written, push_to_hub)
        return written

    def annotate_pairs(self, pairs: Sequence[Pair]) -> Records[Preference]:
        """Label pairs of one's own with the run's annotator, under the run's budget and without label noise."""
        return Records(OnlineAnnotator(self.workspace)(pairs, noiseless=True))

    def __repr__(self) -> str:
        config, settings = self.workspace.config, self.workspace.settings
        labels = f"preferences {config.preferences}" if config.preferences else f"annotator {config.annotate.annotator}"
        where = self.workspace.store.root
        return f"Farm({settings.recipe}, {config.method}, {labels}, seed {config.seed}, in {where})"

    def _repr_html_(self) -> str:
        rows = [
            (run.label, "reused" if run.reused else f"{run.seconds:.0f} s", run.artifact.key)
            for run in self.workspace.history.values()
        ]
        return html_table(["stage", "took", "artifact"], rows, repr(self))

    def close(self) -> None:
        """Stop the judges' thread and close the ledger. The farm can be used again."""
        self.workspace.close()


def as_overrides(
    settings: Override | Iterable[Override] = (),
    *,
    annotator: str | None = None,
    **choices: Any,
) -> list[Override]:
    """Return fields of `RunConfig`, the training labels' annotator, and settings as overrides.

    Raises `ConfigError` for a name that is no field. A None is a value like others: most fields refuse it.
    """
    known = [*RunConfig.model_fields, *(name for name in signature(Farm).parameters if name != "choices")]
    sections = {name for name, value in choices.items() if isinstance(value, Mapping)}
    if strange := [name for name in choices if name not in known and name not in sections]:
        raise ConfigError(
            f"there is no argument {name!r}, and no field of a recipe is called so.{nearest_setting(name, known)}"
            for name in strange
        )
    overrides: list[Override] = [
        {name: str(value) if isinstance(value, Path) else value for name, value in choices.items()}
    ]
    listed = list_overrides(settings)
    name_code([annotator, choices, listed])
    if annotator is not None:
        overrides.append({"annotate": {"annotator": annotator}})
    return overrides + listed
