"""The door to what is stored, read-only: runs, outputs, labels, votes, answers, costs and boards.

    from afarm import results

    run = results.open_run("toy-ppo-1a2b3c", "afarm-runs")
    results.to_frame(run.judgements())
    boards, left_out = results.read_boards(["afarm-runs"])

`open_runs`, `open_run` and `read_boards` are stable. The other names are provisional: the parts that pages, bundles and
judge probes read, as they lie on disk.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afarm.evaluation.boards.sources import read_boards
    from afarm.evaluation.drift_log import DRIFT_LOG, read_drift_log
    from afarm.evaluation.metrics import WIN_RATE, MainMetric, finite_number, main_metric, warnings
    from afarm.evaluation.red_flags import Match, flag_sentences, suspicious
    from afarm.evaluation.run_cost import sum_costs
    from afarm.evaluation.run_diff import diff_runs
    from afarm.experiment.live_record import LIVE, process_identity, read_live, stopped_why
    from afarm.judging.accounting import GROUPS, accounts, open_items, unanswered
    from afarm.judging.database import Place, Transaction, fixed_place, is_there, redact_place
    from afarm.judging.ledger import LIVE_SECONDS, LOOK_SECONDS, Ledger, query_chunks
    from afarm.judging.ledger_schema import column_names
    from afarm.judging.pricing import listed_prices
    from afarm.results.read_only_ledger import open_ledger
    from afarm.results.stored_run import StoredRun, open_run, open_runs, to_frame
    from afarm.storage.artifacts import Artifact, Store
    from afarm.storage.contents import META, recorded_files
    from afarm.storage.json_text import NOT_FINITE
    from afarm.storage.metadata import read_metadata
    from afarm.storage.names import is_plain_path
    from afarm.storage.reuse import flatten
    from afarm.storage.rows import read_preferences
    from afarm.storage.runs import METRICS, OUTPUTS, RECORD, find_run, is_simulated
    from afarm.storage.text import holds_key, without_keys

_ON_FIRST_USE = {
    **dict.fromkeys(("read_boards",), "afarm.evaluation.boards.sources"),
    **dict.fromkeys(
        (
            "DRIFT_LOG",
            "read_drift_log",
        ),
        "afarm.evaluation.drift_log",
    ),
    **dict.fromkeys(
        (
            "MainMetric",
            "WIN_RATE",
            "finite_number",
            "main_metric",
            "warnings",
        ),
        "afarm.evaluation.metrics",
    ),
    **dict.fromkeys(
        (
            "Match",
            "flag_sentences",
            "suspicious",
        ),
        "afarm.evaluation.red_flags",
    ),
    **dict.fromkeys(("sum_costs",), "afarm.evaluation.run_cost"),
    **dict.fromkeys(("diff_runs",), "afarm.evaluation.run_diff"),
    **dict.fromkeys(
        (
            "LIVE",
            "process_identity",
            "read_live",
            "stopped_why",
        ),
        "afarm.experiment.live_record",
    ),
    **dict.fromkeys(
        (
            "GROUPS",
            "accounts",
            "open_items",
            "unanswered",
        ),
        "afarm.judging.accounting",
    ),
    **dict.fromkeys(
        (
            "Place",
            "Transaction",
            "fixed_place",
            "is_there",
            "redact_place",
        ),
        "afarm.judging.database",
    ),
    **dict.fromkeys(
        (
            "LIVE_SECONDS",
            "LOOK_SECONDS",
            "Ledger",
            "query_chunks",
        ),
        "afarm.judging.ledger",
    ),
    **dict.fromkeys(("column_names",), "afarm.judging.ledger_schema"),
    **dict.fromkeys(("listed_prices",), "afarm.judging.pricing"),
    **dict.fromkeys(("open_ledger",), "afarm.results.read_only_ledger"),
    **dict.fromkeys(
        (
            "StoredRun",
            "open_run",
            "open_runs",
            "to_frame",
        ),
        "afarm.results.stored_run",
    ),
    **dict.fromkeys(
        (
            "Artifact",
            "Store",
        ),
        "afarm.storage.artifacts",
    ),
    **dict.fromkeys(("META", "recorded_files"), "afarm.storage.contents"),
    **dict.fromkeys(("NOT_FINITE",), "afarm.storage.json_text"),
    **dict.fromkeys(("read_metadata",), "afarm.storage.metadata"),
    **dict.fromkeys(("is_plain_path",), "afarm.storage.names"),
    **dict.fromkeys(("flatten",), "afarm.storage.reuse"),
    **dict.fromkeys(("read_preferences",), "afarm.storage.rows"),
    **dict.fromkeys(
        (
            "METRICS",
            "OUTPUTS",
            "RECORD",
            "find_run",
            "is_simulated",
        ),
        "afarm.storage.runs",
    ),
    **dict.fromkeys(("holds_key", "without_keys"), "afarm.storage.text"),
}
"""The names by their module, imported when first used."""

__all__ = [
    "DRIFT_LOG",
    "GROUPS",
    "LIVE",
    "LIVE_SECONDS",
    "LOOK_SECONDS",
    "META",
    "METRICS",
    "NOT_FINITE",
    "OUTPUTS",
    "RECORD",
    "WIN_RATE",
    "Artifact",
    "Ledger",
    "MainMetric",
    "Match",
    "Place",
    "Store",
    "StoredRun",
    "Transaction",
    "accounts",
    "column_names",
    "diff_runs",
    "find_run",
    "finite_number",
    "fixed_place",
    "flag_sentences",
    "flatten",
    "holds_key",
    "is_plain_path",
    "is_simulated",
    "is_there",
    "listed_prices",
    "main_metric",
    "open_items",
    "open_ledger",
    "open_run",
    "open_runs",
    "process_identity",
    "query_chunks",
    "read_boards",
    "read_drift_log",
    "read_live",
    "read_metadata",
    "read_preferences",
    "recorded_files",
    "redact_place",
    "stopped_why",
    "sum_costs",
    "suspicious",
    "to_frame",
    "unanswered",
    "warnings",
    "without_keys",
]

if not TYPE_CHECKING:  # to a checker, a misspelt name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module 'afarm.results' has no attribute {name!r}")
        return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return __all__
