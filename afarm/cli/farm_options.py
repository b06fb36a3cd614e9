"""The options that commands share, and the farm they describe."""

# Annotations are evaluated here: `with_options` hands those of the fields on to Typer.

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial, reduce
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli import launch
from afarm.cli.completion import complete_launch_configs, complete_names, complete_recipes, complete_settings
from afarm.cli.console import err
from afarm.cli.given_settings import JUDGING, parse_judges, parse_prices, refuse_contradictions
from afarm.cli.launch import LOCAL
from afarm.cli.plans import show_plan, warn_of_budget
from afarm.cli.progress import ProgressBars
from afarm.cli.recording import command_line
from afarm.cli.shared_options import (
    DEFAULT_OUTPUT_DIR,
    DEFAULT_RECIPE,
    RECIPE_HELP,
    Json,
    LedgerPlace,
    OutputDir,
    StorePlace,
    data_option,
    judge_option,
    model_option,
    money_option,
)
from afarm.cli.stage_lines import StageLines
from afarm.core.errors import ConfigError, PluginError
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm
    from afarm.experiment.preflight import Check
    from afarm.experiment.studies.study import Findings
    from afarm.experiment.workspace import Workspace


@dataclass(frozen=True)
class FarmOptions:
    """The options of every command that makes a farm, in the order of --help.

    To add an option, add a field: one that is called like a field of `RunConfig` gives that setting.
    """

    method: Annotated[
        str | None,
        model_option(
            "--method",
            autocompletion=complete_names("methods"),
            show_default="the recipe's",
            help="The method to train (`afarm plugins` lists them).",
            metavar="NAME",
        ),
    ] = None
    annotator: Annotated[
        str | None,
        judge_option(
            "--annotator",
            autocompletion=complete_names("annotators"),
            show_default="the recipe's",
            help="Who labels the training pairs.",
            metavar="NAME",
        ),
    ] = None
    both_orders: Annotated[
        bool | None, judge_option("--both-orders", help="Judge each pair in both orders; where they disagree, a draw.")
    ] = None
    votes: Annotated[
        int | None,
        judge_option(
            "--votes", min=1, show_default="the recipe's", help="Independent draws of the judgement of each pair."
        ),
    ] = None
    vote: Annotated[
        str | None,
        judge_option(
            "--vote",
            autocompletion=lambda: ["majority", "mean"],
            help="How votes make a label: majority, or mean.",
            metavar="RULE",
        ),
    ] = None
    label_noise: Annotated[
        float | None,
        judge_option(
            "--label-noise",
            min=0,
            max=0.5,
            show_default="the recipe's",
            help="Share of training labels flipped; with two files, of judgements.",
            metavar="SHARE",
        ),
    ] = None
    judge: Annotated[
        list[str] | None,
        judge_option(
            "--judge",
            autocompletion=complete_names("judges"),
            show_default="the recipe's",
            help="The judge LLM, as NAME:SPEC, or ROLE=NAME:SPEC for one family role; repeatable.",
            metavar="NAME:MODEL",
        ),
    ] = None
    reward_model: Annotated[
        str | None,
        model_option(
            "--reward-model",
            autocompletion=complete_names("reward_models"),
            show_default="the recipe's",
            help="The reward model to fit or use.",
            metavar="NAME",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        model_option(
            "--recipe",
            autocompletion=complete_recipes,
            help=RECIPE_HELP,
            metavar="NAME|FILE",
        ),
    ] = DEFAULT_RECIPE
    model: Annotated[
        str | None,
        model_option(
            "--model",
            show_default="the recipe's",
            help="The base model: a Hub id, a directory or a .gguf file.",
            metavar="MODEL",
        ),
    ] = None
    dataset: Annotated[
        str | None,
        data_option(
            "--dataset",
            autocompletion=complete_names("datasets"),
            show_default="the recipe's",
            help="The data set, by name.",
            metavar="NAME",
        ),
    ] = None
    data: Annotated[
        Path | None,
        data_option(
            "--data",
            help="Your own file of instructions, cut into splits.",
            metavar="FILE",
        ),
    ] = None
    preferences: Annotated[
        list[str] | None,
        data_option(
            "--preferences",
            help="Your own preferences to train on, a file or hf:OWNER/NAME[:SPLIT]: nothing is sampled or labelled.",
            metavar="FILE",
        ),
    ] = None
    on_unusable: Annotated[
        str | None,
        data_option(
            "--on-unusable",
            autocompletion=lambda: ["error", "drop"],
            help="Preferences that cannot be learned from: error (the default), or drop.",
            metavar="POLICY",
        ),
    ] = None
    labels: Annotated[
        str | None,
        data_option(
            "--labels",
            help="The labels in files for the first output, the second and a draw, if not 1,2,0: 0,1, or A,B,tie.",
            metavar="FIRST,SECOND[,DRAW]",
        ),
    ] = None
    eval_set: Annotated[
        str | None,
        data_option(
            "--eval-set",
            autocompletion=complete_names("datasets"),
            show_default="the recipe's",
            help="What is evaluated on: a data set by name, a file, or hf:OWNER/NAME[:SPLIT].",
            metavar="NAME|FILE",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        model_option(
            "--set",
            autocompletion=complete_settings,
            help="A setting, as section.name=value; repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None
    seed: Annotated[
        int | None, model_option("--seed", show_default="the recipe's", help="The seed that every draw derives from.")
    ] = None
    budget: Annotated[
        float | None,
        money_option(
            "--budget",
            help="Dollars that judges may cost at most.",
            metavar="DOLLARS",
        ),
    ] = None
    price: Annotated[
        list[str] | None,
        money_option(
            "--price",
            help="What a judge charges, in dollars per million tokens; repeatable.",
            metavar="JUDGE=INPUT/OUTPUT[/CACHED]",
        ),
    ] = None
    max_concurrency: Annotated[
        int | None, money_option("--max-concurrency", help="Requests in flight at once to each judge.")
    ] = None
    allow_degraded: Annotated[
        bool | None,
        judge_option("--allow-degraded", help="Leave out what a judge cannot take; every label then says so."),
    ] = None
    batch_api: Annotated[
        bool | None, money_option("--batch-api", help="Ask through batch endpoints: half the price, within a day.")
    ] = None
    accelerate_config: Annotated[
        str | None,
        money_option(
            "--accelerate-config",
            autocompletion=complete_launch_configs,
            help="Run in several processes: two_processes, fsdp2, fsdp2_offload, or a file of accelerate's.",
            metavar="NAME",
        ),
    ] = None
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR
    ledger: LedgerPlace = None
    store: StorePlace = None
    as_json: Json = False

    def farm(self, llm_systems: Sequence[str] = (), stage: str = "") -> "Farm":
        """Open the farm that the options describe, telling on stderr what each stage does.

        `llm_systems` are judge LLMs that will answer the instructions themselves. Checked is what a `stage` needs, or
        the whole run.
        """
        from afarm.experiment import preflight
        from afarm.experiment.farm import Farm

        self._launch()
        checks = preflight.stage_checks(stage) if stage else preflight.run_checks(llm_systems)
        checks += preflight.access_checks(llm_systems, stage)
        trains = stage in ("", "train")
        return Farm.over(self.workspace(checks, self.output_dir, launch.process_info(), trains))

    def judging_workspace(self) -> "Workspace":
        """Open the workspace for what judges files: nothing trains, so that only the main process goes on."""
        from afarm.experiment import preflight

        self._launch()
        if not launch.process_info().is_main_process:
            raise typer.Exit
        return self.workspace([*preflight.judging_checks(), *preflight.access_checks()], self.output_dir)

    @contextmanager
    def dry_run(self, checks: "Sequence[Check]", trains: bool = True) -> "Iterator[Workspace]":
        """Open the workspace for a look at what it would do, if no method `trains` too. No directory is made."""
        from afarm.storage.artifacts import view_store

        if not launch.process_info().is_main_process:
            raise typer.Exit
        tell = partial(err().print, highlight=False, soft_wrap=True, markup=False)
        with (
            view_store(self.output_dir, tell) as output_dir,
            self.workspace(checks, output_dir, trains=trains) as workspace,
        ):
            yield workspace

    @staticmethod
    def warn_of_budget(farm: "Farm", method: str, evaluations: int = 1) -> None:
        """Say before anything is bought that evaluating a method, or its variants, exceeds --budget."""
        from afarm.experiment.dry_run import plan_run

        warn_of_budget(farm.workspace, lambda: plan_run(farm.workspace, method, evaluations))

    def show_plan(self, evaluations: int = 1) -> None:
        """Show what a run, with that many evaluations, would make and buy, and do nothing."""
        from afarm.experiment import preflight
        from afarm.experiment.dry_run import plan_run

        with self.dry_run(preflight.run_checks()) as workspace:
            method = workspace.config.method
            show_plan(workspace, method, self.as_json, planned=plan_run(workspace, method, evaluations))

    def write_findings(self, farm: "Farm", name: str, findings: "Findings") -> Path:
        """Write the page of a command's findings among the studies, and return its path."""
        from afarm.report.study_page import write_findings

        judges = {judge.identity for judge in farm.workspace.judges.by_role.values() if judge.simulated}
        return write_findings(self.output_dir, f"{name}-{farm.workspace.run_name()}", command_line(), findings, judges)

    @property
    def recipe_or_default(self) -> str:
        """The recipe to read. Raises `ConfigError` for an empty name, which an unset variable leaves."""
        if self.recipe == "":
            raise ConfigError([f"--recipe names none: leave it out for {DEFAULT_RECIPE}; `afarm recipes` lists them"])
        return self.recipe or DEFAULT_RECIPE

    def _launch(self) -> None:
        """Start several processes that go on with this command, if --accelerate-config asks for them."""
        _prepare_environment()
        if self.accelerate_config and not launch.process_info().is_distributed:
            launch.relaunch(self.accelerate_config)

    def workspace(
        self,
        checks: "Sequence[Check]",
        output_dir: Path,
        process_info: ProcessInfo = SINGLE_PROCESS,
        trains: bool = True,
    ) -> "Workspace":
        from afarm.experiment.live_record import Watch
        from afarm.experiment.opening import open_workspace
        from afarm.judging.database import is_url
        from afarm.judging.sqlite_database import network_file_system

        _prepare_environment()
        settings, given = self.settings or [], self._collect_given()
        refuse_contradictions(given, settings)
        bars = ProgressBars(err())
        watch = Watch(bars, bars.tell)
        workspace = open_workspace(
            self.recipe_or_default,
            [given, *settings],
            output_dir,
            checks=checks,
            progress=watch,
            notify=watch.tell,
            process_info=process_info,
            trains=trains,
            ledger=self.ledger,
            store=self.store,
        )
        workspace.on_stage = lines = StageLines(bars, workspace)
        bars.note = lines.spent
        place = workspace.judges.ledger_place
        if not is_url(place) and (kind := network_file_system(Path(place))):
            there = f"the ledger {place} is on a network file system ({kind})"
            err().print(f"[yellow]{there}: locking is slower; prefer a local disk, or a database (--ledger).[/]")
        if launch.mpi_is_missing():
            err().print(
                "[yellow]This is one process: accelerate starts several on CPUs through MPI only. "
                "--accelerate-config two_processes needs none.[/]"
            )
        return workspace

    def as_recipe(self) -> dict[str, Any]:
        """Return all that the options give as a recipe says it, --set included."""
        from afarm.experiment.recipe import merge, parse_override

        return reduce(merge, map(parse_override, self.settings or []), self._collect_given())

    def _collect_given(self) -> dict[str, Any]:
        """Return the options as settings. Raises `ConfigError` if two contradict each other."""
        from afarm.experiment.settings import RunConfig

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {k: v for k, v in values.items() if k in RunConfig.model_fields and v not in (None, [])}
        if self.price:
            given["price"] = parse_prices(self.price)
        if self.judge:
            given["judge"] = parse_judges(self.judge)
        if labelling := self.labelling():
            given["annotate"] = labelling
        judging = self.judging()
        if self.preferences:
            given["preferences"] = self._one_source(self.preferences, [*labelling, *judging])
        if judging and (section := self._section(judging)):
            given[section] = judging
        if self.data is not None:
            if given.get("dataset", "files") != "files":
                raise ConfigError([f"--data {self.data} and --dataset {self.dataset} contradict each other: give one"])
            given |= {"dataset": "files", "files": {"path": str(self.data)}}
        return given

    @staticmethod
    def _one_source(sources: Sequence[str], labelling: Sequence[str]) -> str:
        """Return the file of own preferences. Raises `ConfigError` for several, or options that label pairs."""
        problems = [
            f"--preferences and --{name.replace('_', '-')} contradict each other: the file has the labels"
            for name in labelling
        ]
        if len(sources) > 1:
            problems.append(f"--preferences takes one file at a time: join {' and '.join(sources)} into one")
        if problems:
            raise ConfigError(problems)
        return sources[0]

    def judging(self) -> dict[str, Any]:
        """Return the settings of the annotator that have options of their own, those that were given."""
        return {name: value for name in JUDGING if (value := getattr(self, name)) is not None}

    def labelling(self) -> dict[str, Any]:
        """Return the settings of the training labels, those that were given."""
        found = {"annotator": self.annotator, "label_noise": self.label_noise}
        return {name: value for name, value in found.items() if value is not None}

    def _section(self, judging: Mapping[str, Any]) -> str:
        """Return the annotator's section; empty if it is unknown. Raises `ConfigError` if it lacks settings."""
        from afarm.core.plugins import discover
        from afarm.experiment.recipe import merge, parse_override, read_recipe
        from afarm.experiment.settings import AnnotateConfig

        name = self.annotator
        if name is None:
            values: dict[str, Any] = read_recipe(self.recipe_or_default)
            for text in self.settings or []:
                with suppress(ConfigError):  # one that cannot be read is reported with all else that is wrong
                    values = merge(values, parse_override(text))
            name = str(values.get("annotate", {}).get("annotator") or AnnotateConfig().annotator)
        try:
            config = discover(check_configs=False).get("annotators", name).config
        except PluginError:
            return ""
        known = config.model_fields if config else {}
        if lacking := [f"--{setting.replace('_', '-')}" for setting in judging if setting not in known]:
            raise ConfigError([f"annotator {name!r} takes no {' and no '.join(lacking)}"])
        return name.partition(":")[0]


def with_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Replace the parameter `options` of a command, a dataclass, by one parameter per field for Typer.

    Fields named in `without` are none of the command's, and keep their defaults.
    """
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    options: type[FarmOptions] = parameters["options"].annotation
    own = [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in fields(options)]
    own = [parameter for parameter in own if parameter.name not in without]

    def expanded(**given: Any) -> None:
        chosen = options(**{parameter.name: given.pop(parameter.name) for parameter in own})
        launch.require_one_way(given.get("launcher", LOCAL), chosen.accelerate_config)
        command(options=chosen, **given)

    shown = [p for name, parameter in parameters.items() for p in (own if name == "options" else [parameter])]
    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in shown]
    expanded.__doc__ = command.__doc__
    expanded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return expanded


def _prepare_environment() -> None:
    """Keep other libraries' chatter out of the output unless asked for, and threads from spinning.

    On a machine that does something else as well, threads that spin while they wait made sampling 2.5 times slower.
    """
    for name, value in {
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(name, value)
    if "PYTHONWARNINGS" not in os.environ:
        warnings.simplefilter("ignore")
