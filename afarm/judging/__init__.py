"""The door for annotators and judges, from a pair to a label, and for databases of the ledger.

Behind it lies the metered way to those judges: dispatch, budget and ledger. Importing it loads neither.
"""

from afarm.core.judge import CHARACTERS_PER_TOKEN
from afarm.judging.database import Database, explain_version
from afarm.judging.degraded import unsupported
from afarm.judging.labelling import annotate_in_chunks
from afarm.judging.ledger_schema import LEDGER_COLUMNS, LEDGER_SCHEMA, LEDGER_VERSION, split_statements
from afarm.judging.pairwise import (
    REFUSALS,
    SAMPLES_PER_VOTE,
    JudgementDraw,
    JudgePrompt,
    JudgingConfig,
    PairwiseAnnotator,
    ParsedVerdict,
    Presentation,
    build_judgements,
    collect_judgements,
    draw_order,
    label_pairs,
    pending_requests,
    per_label,
    show_pair,
)
from afarm.judging.prompt_annotator import PromptAnnotator
from afarm.judging.rate_limit import SlowDown, answer_lost

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "LEDGER_COLUMNS",
    "LEDGER_SCHEMA",
    "LEDGER_VERSION",
    "REFUSALS",
    "SAMPLES_PER_VOTE",
    "Database",
    "JudgePrompt",
    "JudgementDraw",
    "JudgingConfig",
    "PairwiseAnnotator",
    "ParsedVerdict",
    "Presentation",
    "PromptAnnotator",
    "SlowDown",
    "annotate_in_chunks",
    "answer_lost",
    "build_judgements",
    "collect_judgements",
    "draw_order",
    "explain_version",
    "label_pairs",
    "pending_requests",
    "per_label",
    "show_pair",
    "split_statements",
    "unsupported",
]
