"""Cards that are kept in an output directory, and the section of a report that shows one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from afarm import AfarmError, DataError, RunRecord, write_json, write_whole
from afarm.cli.options import dollars
from afarm.results import StoredRun
from afarm_judge_card.card import Card, Figure

FOLDER = "judge-cards"


def name_card(card: Card) -> str:
    """Name a card's files: by its annotator, judges and models, and by how many pairs it has."""
    key = json.dumps([card.annotator, card.judges, card.models, card.pairs, card.seed])
    shown = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([card.annotator, *(card.models or card.judges)])).strip("-.")
    return f"{shown[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def keep_card(card: Card, output_dir: Path) -> Path:
    """Write a card as JSON and as a page; return the page. Raises `StoreError` if it cannot be written."""
    folder = output_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = name_card(card)
    write_json(folder / f"{name}.json", card.to_row())
    page = (
        '<!doctype html><meta charset="utf-8"><title>A judge\'s card</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "td,th{text-align:left;padding:.2em 1em .2em 0;vertical-align:top}</style>"
        f"<h1>{escape(title(card))}</h1>{card_html(card)}"
    )
    target = folder / f"{name}.html"
    write_whole(target, page, "free some space or fix the rights, then `afarm judge card` again: it buys nothing")
    return target


def read_cards(output_dir: Path) -> list[tuple[Path, Card]]:
    """Read the cards that are kept, by name. Raises `DataError` for a file that is none."""
    found = []
    for file in sorted((output_dir / FOLDER).glob("*.json")):
        try:
            found.append((file.with_suffix(".html"), Card.from_row(json.loads(file.read_text(encoding="utf-8")))))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise DataError(f"{file}: is no card of this version ({error}): delete it and make it again") from error
    return found


def title(card: Card) -> str:
    """Name the annotator, its judges without the digests of their files, and the models behind them."""
    judges = ", ".join(re.sub("@[0-9a-f]{8,}$", "", judge) for judge in card.judges)
    dated = [model for model in card.models if not any(model in judge for judge in card.judges)]
    return card.annotator + (f" with {judges}" if judges else "") + (f" ({', '.join(dated)})" if dated else "")


def find_cards(record: Mapping[str, Any], output_dir: Path) -> list[tuple[Path, Card]]:
    """Find the cards of who judged a run: the same annotator, with judges that the run asked.

    Of several cards of the same models it is the one with the most pairs.
    """
    config = record.get("config")
    evaluate = config.get("evaluate") if isinstance(config, Mapping) else None
    annotators = {evaluate.get("annotator") if isinstance(evaluate, Mapping) else None, record.get("annotator")}
    rows = record.get("judges")
    asked = {row.get("identity") for row in rows if isinstance(row, Mapping)} if isinstance(rows, list) else set()
    found: dict[tuple[str, ...], tuple[Path, Card]] = {}
    for page, card in sorted(read_cards(output_dir), key=lambda kept: kept[1].pairs):
        if card.annotator in annotators and asked.issuperset(card.judges):
            found[card.annotator, *card.judges, "", *card.models] = page, card
    return [*found.values()]


def list_pages(record: RunRecord) -> dict[str, Path]:
    """List the pages of the cards of a run's judge; the run's report says which of them are damaged."""
    try:
        found = find_cards(record, record.directory.parent.parent)
    except DataError:
        return {}
    return {f"Card of {title(card)}": page for page, card in found}


def write_section(record: RunRecord) -> str:
    """Write the section of a run's report; empty if no card of its judge is kept beside it."""
    found = find_cards(record, record.directory.parent.parent)
    models = _models_of(record.directory) if found else set()
    same = [(page, card) for page, card in found if models.intersection(card.models)]
    parts = []
    for page, card in same or found:
        link = f"../../{FOLDER}/{page.name}"
        said = f'<p>Judged by {escape(title(card))}: <a href="{escape(link)}">its card</a>, on {card.pairs} pairs.</p>'
        if models and card.models and not same:
            said += f"<p>The answers of this run are of {escape(', '.join(sorted(models)))}: make a card of that.</p>"
        parts.append(said + table_html(card))
    return "".join(parts)


def _models_of(run: Path) -> set[str]:
    """The dated names of the models that answered in a run; none if its labels or the ledger are gone."""
    try:
        return {answer.model for answer in StoredRun(run).answers().values()} - {""}
    except AfarmError:
        return set()


def card_html(card: Card) -> str:
    """Write a card's table and what is said below it."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in sentences(card))
    return f"{table_html(card)}<ul>{lines}</ul>"


def table_html(card: Card) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (f.says, *cells(f))) + "</tr>" for f in card.figures
    )
    return (
        "<table><thead><tr><th>the judge</th><th>%</th><th>of</th><th>beside</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def cells(figure: Figure) -> tuple[str, str, str]:
    """Write a figure's share with its interval, of how many, and what to hold it against."""
    if figure.value is None or figure.low is None or figure.high is None:
        return "not measured", "", figure.why
    return f"{figure.value:.0f} ({figure.low:.0f}–{figure.high:.0f})", str(figure.n), figure.beside


def sentences(card: Card) -> list[str]:
    """Write what a card says beside its table: flags, costs, and what it was measured on."""
    price = (
        "It asks no judge and costs nothing."
        if not card.calls
        else f"{card.calls:,} answers; their price is unknown."
        if card.dollars is None or card.per_decided is None
        else f"{card.calls:,} answers for {dollars(card.dollars)}; {dollars(card.per_decided)} for each verdict."
    )
    formula = ["It is a formula, not a language model."] if card.simulated else []
    return [*(f"Flag: {flag}" for flag in card.flags), price, *formula, f"Measured on {card.pairs} pairs that ship."]
