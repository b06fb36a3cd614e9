"""`afarm ledger`: spend by run, judge, annotator and day, and answers that were reused."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from afarm.cli.console import err, out, print_json
from afarm.cli.shared_options import DEFAULT_OUTPUT_DIR, Json, LedgerPlace, OutputDir, option
from afarm.cli.tables import print_table
from afarm.core.errors import StoreError
from afarm.judging import accounting
from afarm.judging.database import is_there, is_url, redact_place
from afarm.judging.ledger import Ledger
from afarm.storage.artifacts import Store, view_store
from afarm.storage.text import dollars

ROUNDING = 1e-6
"""Dollars by which sums of prices may differ."""


def ledger(
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    ledger: LedgerPlace = None,
    export: Annotated[Path | None, option("--export", "Write every answer to this file, JSONL or (.csv) CSV.")] = None,
    forget: Annotated[str | None, option("--forget BATCH", "Wait no more for the batch with this id.")] = None,
    recover: Annotated[
        bool, option("--recover", "Replace a damaged ledger by what can be read; the file is kept.")
    ] = False,
    start_anew: Annotated[bool, option("--start-anew", "Begin an empty ledger where the old one is gone.")] = False,
    as_json: Json = False,
) -> None:
    """Show what judges have cost: by run, judge, annotator and day, and what was not paid again."""
    place = ledger or Store(output_dir).ledger_path
    if start_anew:
        if is_there(place):
            raise StoreError(f"{redact_place(place)} is there: move it away first, or recover it with --recover")
        Ledger(place).close()
    if not is_there(place):
        where = f"at {redact_place(place)}" if ledger else f"in {output_dir}"
        raise StoreError(
            f"no ledger {where}: nothing has been asked of a judge there; name another with --output-dir or --ledger"
        )
    if recover:
        if is_url(place):
            raise StoreError("--recover is for damaged files: a server recovers by itself, or from its backup")
        _recover(Path(place))
    only_read = not (ledger or forget is not None or recover or start_anew)
    seen = view_store(output_dir) if only_read else nullcontext(output_dir)
    with seen as directory, Ledger(Store(directory).ledger_path if only_read else place) as opened:
        if forget is not None:
            count = opened.forget_batch(forget)
            if not count:
                raise StoreError(f"no batch {forget!r} is waited for: `afarm ledger` lists those that are")
            err().print(f"Forgot the batch of {count} requests: they will be asked, and paid, again.")
        if export is not None:
            count = accounting.export(opened, export)
            err().print(f"{count} answers written to {export}")
        if as_json:
            print_json(accounting.summary(opened))
        elif export is None and forget is None and not recover:
            _show(opened)


def _recover(path: Path) -> None:
    from afarm.judging.ledger_recovery import is_sound, recover

    if is_sound(path):
        err().print(f"{path} is sound: nothing to recover.", markup=False)
        return
    saved = recover(path)
    text = f"{saved.answers:,} answers are saved in {path}, with all spending; the damaged file is {saved.damaged}.\n"
    if saved.incomplete:
        lost = f"; answers that cost {dollars(saved.lost_dollars)} are lost" if saved.lost_dollars > ROUNDING else ""
        text += (
            f"Damaged in it: {', '.join(saved.incomplete)}{lost}. What needs an answer that is lost, and no saved "
            f"label has it, asks and pays for it again. `sqlite3 {shlex.quote(str(saved.damaged))} .recover` may read "
            "more of it (docs/guides/troubleshooting.md)."
        )
    else:
        text += "Nothing is lost."
    err().print(text, markup=False)


def _show(ledger: Ledger) -> None:
    for group in accounting.GROUPS:
        rows = accounting.accounts(ledger, group)
        columns = {
            group: [a.name or "–" for a in rows],
            "answers": [f"{a.answers:,}" for a in rows],
            "tokens in": [f"{a.input_tokens:,}" for a in rows],
            "out": [f"{a.output_tokens:,}" for a in rows],
            "dollars": [f"{a.dollars:.4f}" for a in rows],
            "unpriced": [f"{a.unpriced:,}" for a in rows] if any(a.unpriced for a in rows) else [],
            "reused": [f"{a.reused:,}" for a in rows] if any(a.reused for a in rows) else [],
            "saved": [f"{a.saved:.4f}" for a in rows] if any(a.saved for a in rows) else [],
        }
        columns = {title: cells for title, cells in columns.items() if cells or title == group}
        figures = {title: title != group for title in columns}
        print_table(out(), f"by {group}", figures, list(zip(*columns.values(), strict=True)))
    # Reasons of answers without a text: content filters, too long prompts and the like.
    if counts := [f"{count:,} {reason or 'without a reason'}" for reason, count in accounting.unanswered(ledger)]:
        out().print(f"Answers without a text: {', '.join(counts)}.", markup=False)
    items = accounting.open_items(ledger)
    for batch in items["batches"]:
        out().print(
            f"Pending: batch {batch['ticket']} of {batch['judge']}, {batch['requests']} requests, at most "
            f"{dollars(batch['reserved'])}. The same command collects it.",
            markup=False,
        )
    unseen = items["in_flight"]
    if unseen["requests"]:
        out().print(
            f"May have been charged for without an answer, or still in flight: {unseen['requests']} requests, at most "
            f"{dollars(unseen['reserved'])} (counted against the budgets of their runs)."
        )
