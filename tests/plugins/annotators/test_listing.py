"""`afarm annotators`: everyone who can label, and the judges for the roles."""

import json

import pytest
import typer
from typer.testing import CliRunner

from afarm.cli import main
from afarm.core.plugins import discover
from afarm_plugins.annotators.command import add_commands, listing
from afarm_plugins.annotators.prompt_library import load_member
from afarm_plugins.annotators.settings import PROMPTS

OTHERS = ["pool", "dialogue_pool", "summary_pool", "ratings", "criteria", "reward"]


def said(*arguments):
    app = typer.Typer()
    app.command("other")(lambda: None)
    add_commands(app)
    done = CliRunner().invoke(app, ["annotators", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_annotator_of_the_plugin_is_listed_with_its_role():
    rows = json.loads(said("--json"))["annotators"]
    registered = {c.name for c in discover().registry if c.kind == "annotators" and c.plugin.endswith(":annotators")}
    assert {row["name"] for row in rows} == registered == {*PROMPTS, *OTHERS}
    roles = {row["name"]: row["role"] for row in rows}
    assert all(roles[name] == load_member(name).spec.role for name in [*PROMPTS])
    assert all(row["varies"] and not row["varies"].startswith(",") for row in rows)


def test_the_page_shows_what_to_type():
    text = said()
    for name in [*PROMPTS, *OTHERS]:
        assert f"\n{name} " in f"\n{text}"
    assert "gpt-4-0314 (retired)" in text
    years = listing()["years"]
    newest = years[max(years)]["anthropic"]
    assert f"--judge anthropic:{newest['light']} --judge strong=anthropic:{newest['strong']}" in text


def test_the_data_file_names_roles_that_members_have_and_dates_models_that_it_names():
    found = listing()
    assert {load_member(name).spec.role for name in [*PROMPTS]} == set(found["roles"])
    vendors = [vendor for year in found["years"].values() for vendor in year.values()]
    assert {role for models in vendors for role in models} == set(found["roles"])
    assert set(found["until"]) <= {model for models in vendors for model in models.values()}
    assert list(found["years"]) == sorted(found["years"])
    assert found["years"][2023]["openai"] == {
        "strong": "gpt-4-0314",
        "light": "gpt-3.5-turbo-0301",
        "completion": "text-davinci-003",
    }


def test_the_listing_stands_beside_commands_that_others_put_under_its_name(capsys):
    for words, said in ((["annotators"], "davinci003_4"), (["annotators", "compare", "--help"], "Compare annotators")):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        assert said in capsys.readouterr().out
