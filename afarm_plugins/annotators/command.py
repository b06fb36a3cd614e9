"""`afarm annotators`: the annotators, the role that each asks, and judges for the roles by year."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from afarm.cli.options import Json, print_json
from afarm_plugins.annotators.shipped import shipped_yaml


def add_commands(app: typer.Typer) -> None:
    """Make `afarm annotators` print the listing, beside other plugins' commands of that group."""
    group = typer.Typer()
    group.callback(invoke_without_command=True)(annotators)
    app.add_typer(group, name="annotators", rich_help_panel="Judges and their cost")


def annotators(
    context: typer.Context,
    as_json: Json = False,
) -> None:
    """List the annotators and the judges of their roles, or compare them."""
    if context.invoked_subcommand is None:
        if as_json:
            print_json(listing())
        else:
            sys.stdout.write(page(listing()))


def listing() -> dict[str, Any]:
    """The annotators as rows (name, role, what it varies), the roles, and their judges by year."""
    from afarm_plugins.annotators import register_annotators
    from afarm_plugins.annotators.prompt_library import load_member
    from afarm_plugins.annotators.settings import PROMPTS

    rows: list[dict[str, str]] = []

    def add(name: str, target: Any, *, summary: str, **_: Any) -> None:
        role = load_member(name).spec.role if name in PROMPTS else ""
        rows.append({"name": name, "role": role, "varies": re.sub("^.*? judge,? ", "", summary) if role else summary})

    register_annotators(add)
    rows.sort(key=lambda row: not row["role"])  # the prompts, then those that are no single prompt
    return {"annotators": rows, **shipped_yaml("families.yaml")}


def page(contents: dict[str, Any]) -> str:
    width = max(len(row["name"]) for row in contents["annotators"]) + 2
    lines = [f"{row['name']:<{width}}{row['role'] or '-':<12}{row['varies']}" for row in contents["annotators"]]
    lines += ["", "A role is the family of judge that a prompt annotator asks; you say which model it is:", ""]
    lines += [f"  {role:<12}{text}" for role, text in contents["roles"].items()]
    lines += ["", "What the roles were, by year, and are:", ""]
    for year, vendors in contents["years"].items():
        for vendor, models in vendors.items():
            options = ""
            for role, model in models.items():
                ended = str(contents["until"].get(model, ""))
                until = ended if ended in ("", "retired") else f"until {ended}"
                options += f" {role}={model}" + (f" ({until})" if until else "")
            lines.append(f"  {year}  {vendor:<17}{options}")
    lines += ["", "A judge without a role answers for those not named; the toy recipe asks a formula instead:", ""]
    for vendor, models in contents["years"][max(contents["years"])].items():
        if {"strong", "light"} <= models.keys():
            lines.append(f"  --judge {vendor}:{models['light']} --judge strong={vendor}:{models['strong']}")
    lines += ["", "Annotators of other plugins: afarm plugins"]
    return "\n".join(lines) + "\n"
