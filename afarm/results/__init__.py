"""The door to what is stored, read-only: runs, outputs, labels, votes, answers, costs and boards.

    from afarm import results

    run = results.open_run("toy-ppo-1a2b3c", "afarm-runs")
    results.to_frame(run.judgements())
    boards, left_out = results.read_boards(["afarm-runs"])

`open_runs`, `open_run` and `read_boards` are stable. The other names are provisional: the parts that pages, bundles and
judge probes read, as they lie on disk.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.evaluation.boards.sources import read_boards as read_boards
    from afarm.evaluation.drift_log import DRIFT_LOG as DRIFT_LOG
    from afarm.evaluation.drift_log import read_drift_log as read_drift_log
    from afarm.evaluation.judge_flags import JudgeTally as JudgeTally
    from afarm.evaluation.judge_flags import accuracy_interval as accuracy_interval
    from afarm.evaluation.metrics import WIN_RATE as WIN_RATE
    from afarm.evaluation.metrics import MainMetric as MainMetric
    from afarm.evaluation.metrics import finite_number as finite_number
    from afarm.evaluation.metrics import main_metric as main_metric
    from afarm.evaluation.metrics import warnings as warnings
    from afarm.evaluation.metrics import win_rate_interval as win_rate_interval
    from afarm.evaluation.protocol import EvaluationProtocol as EvaluationProtocol
    from afarm.evaluation.protocol import comparable as comparable
    from afarm.evaluation.red_flags import Match as Match
    from afarm.evaluation.red_flags import flag_sentences as flag_sentences
    from afarm.evaluation.red_flags import suspicious as suspicious
    from afarm.evaluation.run_stages import sum_costs as sum_costs
    from afarm.evaluation.statistics.paired import holm as holm
    from afarm.evaluation.who_judged import are_formulas as are_formulas
    from afarm.evaluation.who_judged import who_judged as who_judged
    from afarm.judging.accounting import GROUPS as GROUPS
    from afarm.judging.accounting import accounts as accounts
    from afarm.judging.accounting import open_items as open_items
    from afarm.judging.accounting import unanswered as unanswered
    from afarm.judging.database import Place as Place
    from afarm.judging.database import Transaction as Transaction
    from afarm.judging.database import fixed_place as fixed_place
    from afarm.judging.database import is_there as is_there
    from afarm.judging.database import redact_place as redact_place
    from afarm.judging.ledger import LIVE_SECONDS as LIVE_SECONDS
    from afarm.judging.ledger import LOOK_SECONDS as LOOK_SECONDS
    from afarm.judging.ledger import Ledger as Ledger
    from afarm.judging.ledger import query_chunks as query_chunks
    from afarm.judging.ledger_schema import column_names as column_names
    from afarm.judging.pricing import listed as listed
    from afarm.results.read_only_ledger import open_ledger as open_ledger
    from afarm.results.stored_run import StoredRun as StoredRun
    from afarm.results.stored_run import open_run as open_run
    from afarm.results.stored_run import open_runs as open_runs
    from afarm.storage.artifacts import Artifact as Artifact
    from afarm.storage.artifacts import Store as Store
    from afarm.storage.contents import META as META
    from afarm.storage.contents import read_metadata as read_metadata
    from afarm.storage.contents import recorded_files as recorded_files
    from afarm.storage.disk import NOT_FINITE as NOT_FINITE
    from afarm.storage.disk import json_text as json_text
    from afarm.storage.names import is_plain_path as is_plain_path
    from afarm.storage.reuse import differences as differences
    from afarm.storage.reuse import flatten as flatten
    from afarm.storage.rows import read_preferences as read_preferences
    from afarm.storage.runs import METRICS as METRICS
    from afarm.storage.runs import OUTPUTS as OUTPUTS
    from afarm.storage.runs import RECORD as RECORD
    from afarm.storage.runs import find_run as find_run
    from afarm.storage.runs import is_simulated as is_simulated
    from afarm.storage.table import to_frame as to_frame
    from afarm.storage.text import holds_key as holds_key
    from afarm.storage.text import without_keys as without_keys
    from afarm.storage.user_files import close_files as close_files
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
