"""The door to what is stored: runs, outputs, labels, votes, answers, costs and boards. Everything is read-only.

    from afarm import results

    run = results.open_run("toy-ppo-1a2b3c", "afarm-runs")
    results.to_frame(run.judgements())
    boards, left_out = results.read_boards(["afarm-runs"])

`open_runs`, `open_run` and `read_boards` are stable. The other names are provisional: the parts that pages, bundles and
judge probes read, as they lie on disk.
"""

from afarm.evaluation.boards.sources import read_boards
from afarm.evaluation.drift_log import DRIFT_LOG, read_drift_log
from afarm.evaluation.metrics import finite_number
from afarm.evaluation.red_flags import Match, flag_sentences, suspicious
from afarm.evaluation.run_cost import cost_of
from afarm.evaluation.run_diff import diff_runs
from afarm.experiment.live_record import LIVE, process_identity, read_live, stopped_why
from afarm.judging.accounting import GROUPS, accounts, open_items, unanswered
from afarm.judging.database import Place, fixed_place, shown_place
from afarm.judging.ledger import Ledger
from afarm.judging.ledger_schema import column_names
from afarm.judging.pricing import listed_prices
from afarm.results.read_only_ledger import open_ledger
from afarm.results.stored_run import StoredRun, open_run, open_runs, to_frame
from afarm.storage.artifacts import Store
from afarm.storage.metadata import read_metadata
from afarm.storage.reuse import flatten
from afarm.storage.runs import METRICS, OUTPUTS, RECORD, find_run, is_simulated

__all__ = [
    "DRIFT_LOG",
    "GROUPS",
    "LIVE",
    "METRICS",
    "OUTPUTS",
    "RECORD",
    "Ledger",
    "Match",
    "Place",
    "Store",
    "StoredRun",
    "accounts",
    "column_names",
    "cost_of",
    "diff_runs",
    "find_run",
    "finite_number",
    "fixed_place",
    "flag_sentences",
    "flatten",
    "is_simulated",
    "listed_prices",
    "open_items",
    "open_ledger",
    "open_run",
    "open_runs",
    "process_identity",
    "read_boards",
    "read_drift_log",
    "read_live",
    "read_metadata",
    "shown_place",
    "stopped_why",
    "suspicious",
    "to_frame",
    "unanswered",
]
