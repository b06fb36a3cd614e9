"""The door for making experiments: open a recipe, plan its stages, estimate and run them.

For plugins that make more than one run (studies, tuning), or that ask judges beside a run (probes, bundles). `Farm` in
`afarm` is the simpler way to make one.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.core.errors import attribute_failures as attribute_failures
    from afarm.core.plugins import Plugins as Plugins
    from afarm.core.plugins import discover as discover
    from afarm.core.registry import Component as Component
    from afarm.experiment.components import Components as Components
    from afarm.experiment.dry_run import JudgeEstimate as JudgeEstimate
    from afarm.experiment.dry_run import PlannedStage as PlannedStage
    from afarm.experiment.dry_run import by_judge as by_judge
    from afarm.experiment.dry_run import estimates as estimates
    from afarm.experiment.dry_run import plan_run as plan_run
    from afarm.experiment.dry_run import reading_client as reading_client
    from afarm.experiment.evaluation_stages import judges_behind as judges_behind
    from afarm.experiment.judges import stored_answers as stored_answers
    from afarm.experiment.method_comparison import named_methods as named_methods
    from afarm.experiment.method_comparison import require_win_rate as require_win_rate
    from afarm.experiment.opening import open_workspace as open_workspace
    from afarm.experiment.preflight import failures as failures
    from afarm.experiment.preflight import judging_checks as judging_checks
    from afarm.experiment.preflight import require_access as require_access
    from afarm.experiment.preflight import run_checks as run_checks
    from afarm.experiment.process_info import ProcessInfo as ProcessInfo
    from afarm.experiment.recipe import BASED_ON as BASED_ON
    from afarm.experiment.recipe import Settings as Settings
    from afarm.experiment.recipe import merge as merge
    from afarm.experiment.recipe import read_recipe as read_recipe
    from afarm.experiment.recipe import resolve as resolve
    from afarm.experiment.return_checks import requests_planned as requests_planned
    from afarm.experiment.run_record import describe_new_run as describe_new_run
    from afarm.experiment.run_record import final_kl as final_kl
    from afarm.experiment.run_record import formula_judges as formula_judges
    from afarm.experiment.run_record import headline as headline
    from afarm.experiment.run_record import stage_row as stage_row
    from afarm.experiment.settings import RunConfig as RunConfig
    from afarm.experiment.studies.progress import GridProgress as GridProgress
    from afarm.experiment.studies.record import PICTURES as PICTURES
    from afarm.experiment.studies.record import STUDY as STUDY
    from afarm.experiment.studies.record import StudyRecord as StudyRecord
    from afarm.experiment.studies.record import read_study_record as read_study_record
    from afarm.experiment.studies.record import write_study_record as write_study_record
    from afarm.experiment.studies.study import Answers as Answers
    from afarm.experiment.tasks import OWN_STAGES as OWN_STAGES
    from afarm.experiment.tasks import Launched as Launched
    from afarm.experiment.tasks import Systems as Systems
    from afarm.experiment.tasks import ask_nodes as ask_nodes
    from afarm.experiment.tasks import code_problems as code_problems
    from afarm.experiment.tasks import identity as identity
    from afarm.experiment.tasks import list_stages as list_stages
    from afarm.experiment.tasks import open_task_workspace as open_task_workspace
    from afarm.experiment.tasks import task_graph as task_graph
    from afarm.experiment.training_stages import require_method as require_method
    from afarm.experiment.workspace import Workspace as Workspace
    from afarm.experiment.workspace import tell_once as tell_once
    from afarm.experiment.workspace import versions as versions
    from afarm.judging.client import JudgeClient as JudgeClient
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
