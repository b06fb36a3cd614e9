"""The options that commands share, and the farm they describe."""

# Annotations are evaluated here: `with_options` hands those of the fields on to Typer.

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial, reduce
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import experiments, report
from afarm.cli import launch
from afarm.cli.completion import complete_launch_configs, complete_recipes, complete_settings
from afarm.cli.console import command_line, err
from afarm.cli.given_settings import JUDGING, parse_judges, parse_prices, refuse_contradictions
from afarm.cli.launch import LOCAL
from afarm.cli.launchers import preview_launch
from afarm.cli.plans import show_plan
from afarm.cli.progress import ProgressBars
from afarm.cli.shared_options import (
    DEFAULT_OUTPUT_DIR,
    DEFAULT_RECIPE,
    LABELS,
    LABELS_HELP,
    OF_RECIPE,
    RECIPE_HELP,
    Json,
    LedgerPlace,
    OutputDir,
    StorePlace,
    data_field,
    judge_field,
    model_field,
    money_field,
)
from afarm.cli.stage_lines import StageLines
from afarm.core.errors import ConfigError, PluginError, attribute_failures
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo
from afarm.storage.runs import RunRecord

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm
    from afarm.experiment.preflight import Check


@dataclass(frozen=True)
class FarmOptions:
    """The options of every command that makes a farm, in the order of --help.

    To add an option, add a field with what help says of it: one that is called like a field of `RunConfig` gives that
    setting.
    """

    method: str | None = model_field(
        "--method NAME", "The method to train (`afarm plugins` lists them).", "methods", OF_RECIPE
    )
    annotator: str | None = judge_field("--annotator NAME", "Who labels the training pairs.", "annotators", OF_RECIPE)
    both_orders: bool | None = judge_field(
        "--both-orders", "Judge each pair in both orders; where they disagree, a draw."
    )
    votes: int | None = judge_field(
        "--votes", "Independent draws of the judgement of each pair.", None, OF_RECIPE, min=1
    )
    vote: str | None = judge_field("--vote RULE", "How votes make a label: majority, or mean.", ["majority", "mean"])
    label_noise: float | None = judge_field(
        "--label-noise SHARE",
        "Share of training labels flipped; with two files, of judgements.",
        None,
        OF_RECIPE,
        min=0,
        max=0.5,
    )
    judge: list[str] | None = judge_field(
        "--judge NAME:MODEL",
        "The judge LLM, as NAME:SPEC, or ROLE=NAME:SPEC for one family role; repeatable.",
        "judges",
        OF_RECIPE,
    )
    reward_model: str | None = model_field(
        "--reward-model NAME", "The reward model to fit or use.", "reward_models", OF_RECIPE
    )
    recipe: str | None = model_field("--recipe NAME|FILE", RECIPE_HELP, complete_recipes, value=DEFAULT_RECIPE)
    model: str | None = model_field(
        "--model MODEL", "The base model: a Hub id, a directory or a .gguf file.", None, OF_RECIPE
    )
    dataset: str | None = data_field("--dataset NAME", "The data set, by name.", "datasets", OF_RECIPE)
    data: Path | None = data_field("--data FILE", "Your own file of instructions, cut into splits.")
    preferences: list[str] | None = data_field(
        "--preferences FILE",
        "Your own preferences to train on, a file or hf:OWNER/NAME[:SPLIT]: nothing is sampled or labelled.",
    )
    on_unusable: str | None = data_field(
        "--on-unusable POLICY",
        "Preferences that cannot be learned from: error (the default), or drop.",
        ["error", "drop"],
    )
    labels: str | None = data_field(LABELS, LABELS_HELP)
    eval_set: str | None = data_field(
        "--eval-set NAME|FILE",
        "What is evaluated on: a data set by name, a file, or hf:OWNER/NAME[:SPLIT].",
        "datasets",
        OF_RECIPE,
    )
    settings: list[str] | None = model_field(
        "--set NAME=VALUE", "A setting, as section.name=value; repeatable.", complete_settings
    )
    seed: int | None = model_field("--seed", "The seed that every draw derives from.", None, OF_RECIPE)
    budget: float | None = money_field("--budget DOLLARS", "Dollars that judges may cost at most.")
    price: list[str] | None = money_field(
        "--price JUDGE=INPUT/OUTPUT[/CACHED]", "What a judge charges, in dollars per million tokens; repeatable."
    )
    max_concurrency: int | None = money_field("--max-concurrency", "Requests in flight at once to each judge.")
    allow_degraded: bool | None = judge_field(
        "--allow-degraded", "Leave out what a judge cannot take; every label then says so."
    )
    batch_api: bool | None = money_field("--batch-api", "Ask through batch endpoints: half the price, within a day.")
    accelerate_config: str | None = money_field(
        "--accelerate-config NAME",
        "Run in several processes: two_processes, fsdp2, fsdp2_offload, or a file of accelerate's.",
        complete_launch_configs,
    )
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

        launch.relaunch(self.accelerate_config)
        checks = preflight.stage_checks(stage) if stage else preflight.run_checks(llm_systems)
        checks += preflight.access_checks(llm_systems, stage)
        trains = stage in ("", "train")
        return Farm.over(self.workspace(checks, self.output_dir, launch.process_info(), trains))

    def judging_workspace(self, checks: "Sequence[Check] | None" = None) -> "experiments.Workspace":
        """Open the workspace for what judges files: nothing trains, so that only the main process goes on.

        `checks` are those of asking judges unless given.
        """
        from afarm.experiment import preflight

        launch.relaunch(self.accelerate_config)
        if not launch.process_info().is_main_process:
            raise typer.Exit
        judging = preflight.judging_checks() if checks is None else checks
        return self.workspace([*judging, *preflight.access_checks()], self.output_dir)

    @contextmanager
    def dry_run(self, checks: "Sequence[Check]", trains: bool = True) -> "Iterator[experiments.Workspace]":
        """Open the workspace for a look at what it would do, if no method `trains` too. No directory is made."""
        from afarm.storage.artifacts import view_store

        if not launch.process_info().is_main_process:
            raise typer.Exit
        with (
            view_store(self.output_dir, partial(err().print, markup=False)) as output_dir,
            self.workspace(checks, output_dir, trains=trains) as workspace,
        ):
            yield workspace

    def show_plan(self, evaluations: int = 1, launcher: str = LOCAL) -> None:
        """Show what a run, with that many evaluations, would make and buy, and ask of `launcher`; do nothing."""
        from afarm.experiment import preflight

        with self.dry_run(preflight.run_checks()) as workspace:
            method = workspace.config.method
            asked = preview_launch(launcher, [(method, workspace)], workspace.run_name())
            planned = experiments.plan_run(workspace, method, evaluations)
            show_plan(workspace, method, self.as_json, planned=planned, launcher=asked)

    @property
    def recipe_or_default(self) -> str:
        """The recipe to read. Raises `ConfigError` for an empty name, which an unset variable leaves."""
        if self.recipe == "":
            raise ConfigError([f"--recipe names none: leave it out for {DEFAULT_RECIPE}; `afarm recipes` lists them"])
        return self.recipe or DEFAULT_RECIPE

    def workspace(
        self,
        checks: "Sequence[Check]",
        output_dir: Path,
        process_info: ProcessInfo = SINGLE_PROCESS,
        trains: bool = True,
    ) -> "experiments.Workspace":
        from afarm.judging.database import is_url
        from afarm.judging.sqlite_database import network_file_system

        _prepare_environment()
        settings, given = self.settings or [], self._collect_given()
        refuse_contradictions(given, settings)
        bars = ProgressBars(err())
        workspace = experiments.open_workspace(
            self.recipe_or_default,
            [given, *settings],
            output_dir,
            checks=checks,
            plugins=experiments.discover(),
            progress=bars,
            notify=bars.notify,
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
        # `accelerate launch --cpu` starts one of several processes, and leaves the rest to MPI.
        several_wanted = "MASTER_PORT" in os.environ and "ACCELERATE_USE_CPU" in os.environ
        if several_wanted and "LOCAL_RANK" not in os.environ and not launch.process_info().is_distributed:
            told = "This is one process: accelerate starts several on CPUs through MPI only."
            err().print(f"[yellow]{told} --accelerate-config two_processes needs none.[/]")
        return workspace

    def as_recipe(self) -> dict[str, Any]:
        """Return all that the options give as a recipe says it, --set included."""
        from afarm.experiment.recipe import parse_override

        return reduce(experiments.merge, map(parse_override, self.settings or []), self._collect_given())

    def _collect_given(self) -> dict[str, Any]:
        """Return the options as settings. Raises `ConfigError` if two contradict each other."""
        given = {k: v for k, v in vars(self).items() if k in experiments.RunConfig.model_fields and v not in (None, [])}
        if self.price:
            given["price"] = parse_prices(self.price)
        if self.judge:
            given["judge"] = parse_judges(self.judge)
        if labelling := self.labelling():
            given["annotate"] = labelling
        judging = {name: value for name in JUDGING if (value := getattr(self, name)) is not None}
        if self.preferences:
            problems = [
                f"--preferences and --{name.replace('_', '-')} contradict each other: the file has the labels"
                for name in (*labelling, *judging)
            ]
            if len(self.preferences) > 1:
                both = " and ".join(self.preferences)
                problems.append(f"--preferences takes one file at a time: join {both} into one")
            if problems:
                raise ConfigError(problems)
            given["preferences"] = self.preferences[0]
        if judging and (section := self._section(judging)):
            given[section] = judging
        if self.data is not None:
            if given.get("dataset", "files") != "files":
                raise ConfigError([f"--data {self.data} and --dataset {self.dataset} contradict each other: give one"])
            given |= {"dataset": "files", "files": {"path": str(self.data)}}
        return given

    def labelling(self) -> dict[str, Any]:
        """Return the settings of the training labels, those that were given."""
        found = {"annotator": self.annotator, "label_noise": self.label_noise}
        return {name: value for name, value in found.items() if value is not None}

    def _section(self, judging: Mapping[str, Any]) -> str:
        """Return the annotator's section; empty if it is unknown. Raises `ConfigError` if it lacks settings."""
        from afarm.experiment.recipe import parse_override
        from afarm.experiment.settings import AnnotateConfig

        name = self.annotator
        if name is None:
            values: dict[str, Any] = experiments.read_recipe(self.recipe_or_default)
            for text in self.settings or []:
                with suppress(ConfigError):  # one that cannot be read is reported with all else that is wrong
                    values = experiments.merge(values, parse_override(text))
            name = str(values.get("annotate", {}).get("annotator") or AnnotateConfig().annotator)
        try:
            config = experiments.discover(check_configs=False).get("annotators", name).config
        except PluginError:
            return ""
        known = config.model_fields if config else {}
        if lacking := [f"--{setting.replace('_', '-')}" for setting in judging if setting not in known]:
            raise ConfigError([f"annotator {name!r} takes no {' and no '.join(lacking)}"])
        return name.partition(":")[0]


def record_run(farm: "Farm", method: str, started: float) -> tuple[RunRecord, Path]:
    """Evaluate `method`, write the run's record and its report. Returns the record and the report's path.

    Plugins can follow it meanwhile, as `afarm view` does.
    """
    from afarm.experiment.run_record import record

    command, followers = command_line(), list[Any]()
    with ExitStack() as followed:
        with attribute_failures("hook", "register_followers"):
            farm.workspace.components.plugins.manager.hook.register_followers(followers=followers)
            for follow in followers:
                followed.enter_context(follow(farm.workspace, method, command, started))
        result = farm.evaluate(method)
        if not farm.workspace.process_info.is_main_process:
            raise typer.Exit  # the main process writes of it
        written = record(farm.workspace, method, result, command, started)
        return written, report.refresh(written.directory)


def with_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Replace the parameter `options` of a command, a dataclass, by one parameter per field for Typer.

    Fields named in `without` are none of the command's, and keep their defaults.
    """
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    options: type[FarmOptions] = parameters["options"].annotation
    own = []
    for field in fields(options):
        if field.name not in without:
            shown = field.metadata.get("option")
            kind = Annotated[field.type, shown] if shown else field.type
            own.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=kind))

    def expanded(**given: Any) -> None:
        chosen = options(**{parameter.name: given.pop(parameter.name) for parameter in own})
        launch.require_one_way(given.get("launcher", LOCAL), chosen.accelerate_config)
        command(options=chosen, **given)

    every = [p for name, parameter in parameters.items() for p in (own if name == "options" else [parameter])]
    every = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in every]
    expanded.__doc__ = command.__doc__
    expanded.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
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
