"""The door for annotators and judges, from a pair to a label, and for databases of the ledger.

Behind it lies the metered way to those judges: dispatch, budget and ledger. Importing it loads neither.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.core.judge import CHARACTERS_PER_TOKEN as CHARACTERS_PER_TOKEN
    from afarm.judging.database import Database as Database
    from afarm.judging.database import explain_version as explain_version
    from afarm.judging.degraded import unsupported as unsupported
    from afarm.judging.labelling import annotate_in_chunks as annotate_in_chunks
    from afarm.judging.ledger_schema import LEDGER_COLUMNS as LEDGER_COLUMNS
    from afarm.judging.ledger_schema import LEDGER_SCHEMA as LEDGER_SCHEMA
    from afarm.judging.ledger_schema import LEDGER_VERSION as LEDGER_VERSION
    from afarm.judging.ledger_schema import split_statements as split_statements
    from afarm.judging.pairwise import REFUSALS as REFUSALS
    from afarm.judging.pairwise import SAMPLES_PER_VOTE as SAMPLES_PER_VOTE
    from afarm.judging.pairwise import JudgementDraw as JudgementDraw
    from afarm.judging.pairwise import JudgePrompt as JudgePrompt
    from afarm.judging.pairwise import JudgingConfig as JudgingConfig
    from afarm.judging.pairwise import PairwiseAnnotator as PairwiseAnnotator
    from afarm.judging.pairwise import ParsedVerdict as ParsedVerdict
    from afarm.judging.pairwise import Presentation as Presentation
    from afarm.judging.pairwise import build_judgements as build_judgements
    from afarm.judging.pairwise import collect_judgements as collect_judgements
    from afarm.judging.pairwise import draw_order as draw_order
    from afarm.judging.pairwise import label_pairs as label_pairs
    from afarm.judging.pairwise import pending_requests as pending_requests
    from afarm.judging.pairwise import per_label as per_label
    from afarm.judging.pairwise import show_pair as show_pair
    from afarm.judging.prompt_annotator import PromptAnnotator as PromptAnnotator
    from afarm.judging.prompt_annotator import render as render
    from afarm.judging.rate_limit import RequestRefused as RequestRefused
    from afarm.judging.rate_limit import SlowDown as SlowDown
    from afarm.judging.rate_limit import answer_lost as answer_lost
    from afarm.storage.thoughts import cut_thoughts as cut_thoughts
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
