"""`afarm label`: people label pairs on a page of this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from afarm import ConfigError, DataError, PluginError, did_you_mean, seeding
from afarm.cli.options import DEFAULT_OUTPUT_DIR, LABELS, LABELS_HELP, OutputDir, err, option, write_examples

if TYPE_CHECKING:
    from afarm import Pair
    from afarm_people.rules import Project
    from afarm_people.store import Person, ProjectStore

EXAMPLES = (
    "pairs.jsonl",
    "pairs.jsonl --guideline guide.md --people ann,bo,cy --each 3",
    "--from-run RUN --from-run RUN --finalists 2 --n 300 --until decided",
    "pairs.jsonl --export labels.jsonl",
)
PROLIFIC = "?PROLIFIC_PID={{%PROLIFIC_PID%}}&STUDY_ID={{%STUDY_ID%}}&SESSION_ID={{%SESSION_ID%}}"
"""What Prolific puts its ids into."""
TOOLS = ("label_studio", "argilla", "potato")
Form = Literal["alpaca_eval", "csv", "arena", "label_studio", "argilla", "potato"]
PANELS = "People", "Pairs and answers", "Server", "Labels that are there"


OPTIONS = {
    "until_decided": "--until",
    "per_person": "--per-person",
    "pass_mark": "--pass-mark",
    "check_every": "--check-every",
    "code": "--completion-code",
    "code_failed": "--screen-out-code",
}
"""Rules whose option has another name."""


def add_commands(app: typer.Typer) -> None:
    app.command("label", epilog=write_examples("label", *EXAMPLES))(label)


def _option(panel: str, shown: str, help: str, default: str | bool = True, **more: Any) -> Any:
    return option(shown, help, None, default, rich_help_panel=panel, **more)


who, how, where, after = (partial(_option, panel) for panel in PANELS)


def label(
    context: typer.Context,
    pairs: Annotated[str | None, typer.Argument(help="Pairs of outputs, labelled or not.", show_default=False)] = None,
    from_run: Annotated[list[str] | None, how("--from-run RUN", "Draw pairs of a stored run; repeatable.")] = None,
    finalists: Annotated[int, how("--finalists N", "The runs' systems with the highest win rates.", min=1)] = 3,
    n: Annotated[int, how("--n N", "Pairs to draw, all finalists together.", min=1)] = 300,
    seed: Annotated[int, how("--seed N", "Of the draw and of all orders.", min=0)] = 0,
    guideline: Annotated[Path | None, how("--guideline FILE", "What people go by, in Markdown.", "a short one")] = None,
    tie: Annotated[bool, how("--tie/--no-tie", "Allow a tie.")] = True,
    reasons: Annotated[bool, how("--reasons/--no-reasons", "Ask for a reason, which is optional.")] = True,
    until: Annotated[
        Literal["decided", "all"], how("--until WHEN", "decided: until it is clear which is better.")
    ] = "all",
    labels: Annotated[str | None, how(LABELS, LABELS_HELP)] = None,
    people: Annotated[str | None, who("--people NAME,NAME", "A sign-in link for each.", "one, without a link")] = None,
    join: Annotated[bool, who("--join", "Make a link for people whom Prolific or MTurk sends.")] = False,
    new_link: Annotated[list[str] | None, who("--new-link NAME", "A new link for a person, join or organiser.")] = None,
    each: Annotated[int, who("--each N", "How many people label each pair.", min=1)] = 1,
    per_person: Annotated[int | None, who("--per-person N", "The most pairs for one person.", "all", min=1)] = None,
    timeout: Annotated[float, who("--timeout MINUTES", "How long a pair is held for who looks at it.", min=0.1)] = 30,
    gold: Annotated[str | None, who("--gold FILE", "Pairs with known answers, to pass first.")] = None,
    pass_mark: Annotated[float, who("--pass-mark SHARE", "Of the gold pairs that must be right.", min=0, max=1)] = 0.7,
    checks: Annotated[str | None, who("--checks FILE", "Pairs with known answers, put among the others.")] = None,
    check_every: Annotated[int, who("--check-every N", "Pairs from one check to the next.", min=1)] = 20,
    pay: Annotated[float, who("--pay DOLLARS", "For each label: it is counted, not paid.", min=0)] = 0.0,
    code: Annotated[str, who("--completion-code CODE", "Shown to who is done.", "none")] = "",
    code_failed: Annotated[str, who("--screen-out-code CODE", "Shown to who failed the gold pairs.", "none")] = "",
    host: Annotated[str, where("--host", "The address that is listened on.")] = "127.0.0.1",
    port: Annotated[int | None, where("--port", "0 for any free one.", "8650 or the next", min=0, max=65535)] = None,
    address: Annotated[str, where("--address URL", "The address that people open, behind a proxy.", False)] = "",
    certificate: Annotated[Path | None, where("--certificate FILE", "Serve over TLS, with its --key.")] = None,
    key: Annotated[Path | None, where("--key FILE", "The certificate's key.")] = None,
    store: Annotated[Path | None, after("--store FILE", "Where labels are kept.", "PAIRS.people.sqlite")] = None,
    export: Annotated[Path | None, after("--export FILE", "Write the labels so far, and end.")] = None,
    form: Annotated[
        Form,
        after("--as FORM", "Of --export: labels, or the pairs to be labelled in label_studio, argilla or potato."),
    ] = "alpaca_eval",
    take: Annotated[list[str] | None, after("--import FILE", "Take a tool's labels, and end; repeatable.")] = None,
    discard: Annotated[str | None, after("--discard NAME", "Leave a person out (add --reason), and end.")] = None,
    reason: Annotated[str, after("--reason TEXT", "Why a person is discarded.", False)] = "",
    delete: Annotated[str | None, after("--delete NAME", "Delete a person with all their labels, and end.")] = None,
    judged: Annotated[list[str] | None, after("--judged FILE", "With --export: a judge's agreement.")] = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Have people say which of two responses is better, on a page in the browser."""
    try:
        from afarm_people.app import label_app  # noqa: F401
    except ModuleNotFoundError as error:
        raise PluginError(f"afarm label needs {error.name}: pip install 'afarm[view]' markdown-it-py") from error
    from afarm_people.draw import beside
    from afarm_people.guideline import read_guideline
    from afarm_people.rules import Project, Rules
    from afarm_people.server import Place, serve
    from afarm_people.signing_in import JOIN
    from afarm_people.store import ProjectStore

    if bool(pairs) == bool(from_run):
        raise ConfigError(["name the pairs to label: afarm label PAIRS.jsonl, or afarm label --from-run RUN"])
    names = [name.strip() for name in (people or "").split(",") if name.strip()]
    source = Path(pairs).expanduser() if pairs else output_dir / "people" / f"{name_draw(from_run or [])}.jsonl"
    place = store or beside(source, ".people.sqlite")
    is_there, ends = place.exists(), export or discard or delete or take
    begins = (take and not is_there) or (export and form in TOOLS)  # others' people label, or have labelled
    if ends and not is_there and not begins:
        named = [pairs] if pairs else [word for run in from_run or [] for word in ("--from-run", run)]
        raise DataError(f"{place}: there are no labels of {source} yet; first: afarm label {shlex.join(named)}")
    if from_run and not is_there:
        _draw(from_run, source, finalists, n, seed, output_dir)
    elif from_run and not ends:
        _say(f"{source} was drawn before, and is taken as it is. For another draw delete it, and its {place.name}.")
    rules = {
        "each": each,
        "timeout": 60 * timeout,
        "per_person": per_person,
        "tie": tie,
        "reasons": reasons,
        "pay": pay,
        "pass_mark": pass_mark,
        "check_every": check_every,
        "until_decided": until == "decided",
        "guideline": read_guideline(guideline),
        "code": code,
        "code_failed": code_failed,
    }
    given = {"gold": gold, "check": checks}
    read = None if ends and not begins else _read(str(source), labels, given)
    opened = ProjectStore(place, seed)
    kept = {name: value for name, value in _stored_rules(opened, context).items() if rules[name] != value}
    project = Project(opened, Rules(**{**rules, **kept}))
    if kept:
        _say(f"As last time, since not given: {', '.join(sorted(OPTIONS.get(name, f'--{name}') for name in kept))}")
    for kind, rows in (read or {}).items():
        project.store.add_pairs(rows, kind, ordered=bool(from_run) or kind in given)
    if ends:
        for file in take or ():
            _take(project, file, labels)
        _end(project, export, form, discard, reason, delete, source, bool(from_run))
        if export and form not in TOOLS:
            _compare(project, judged or ())
        return
    if each > 1 and not (names or join or opened.row("SELECT 1 FROM people WHERE secret != ''") or opened.get(JOIN)):
        _say(f"--each {each}, and one person labels here: name more with --people NAME,NAME, or let them --join.")
    served = Place(host, port, address, str(certificate) if certificate else None, str(key) if key else None)
    _prepare(project, names, join, new_link or [], served)
    opened.set("rules", json.dumps(asdict(project.rules)))

    def announce(base: str) -> None:
        """Make links only once the port is taken: they are shown once."""
        print_addresses(project, served, base, _make_links(project, names, join, new_link or []))

    serve(project, served, announce)


def _stored_rules(store: ProjectStore, context: typer.Context) -> dict[str, Any]:
    """The rules by which the project was served last, without those that the command line gives now."""
    options = {"until_decided": "until", "is_open": ""}
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
    stored = json.loads(store.get("rules") or "{}")
    return {name: value for name, value in stored.items() if options.get(name, name) not in {"", *given}}


Known = Mapping[str, Sequence[tuple["Pair", Mapping[str, Any]]]]


def _draw(runs: Sequence[str], source: Path, finalists: int, n: int, seed: int, output_dir: Path) -> None:
    """Draw pairs of runs into a file."""
    from afarm import write_rows
    from afarm_people.draw import bare_row, draw_pairs, read_runs

    drawn, names = draw_pairs(read_runs(runs, output_dir), finalists, n, seed)
    source.parent.mkdir(parents=True, exist_ok=True)
    write_rows(source, ({**bare_row(pair), **extra} for pair, extra in drawn))
    _say(f"Drew {len(drawn):,} pairs, of {len(drawn) // len(names):,} instructions, into {source}: {', '.join(names)}")


def _read(source: str, labels: str | None, given: Mapping[str, str | None]) -> Known:
    """Read the pairs, and those with known answers, before anything is written."""
    from afarm_people.draw import read_known, read_pairs
    from afarm_people.store import EQUAL, PAIR

    options = {"gold": "--gold", "check": "--checks"}
    known = {kind: read_known(file, options[kind], labels) for kind, file in given.items() if file}
    read = read_pairs(source, labels)
    taken = {pair.id for rows in known.values() for pair, _ in rows}
    to_label = [one for one in read.pairs if not one[0].identical and one[0].id not in taken]
    counts = {
        "have equal responses, which are draws: nobody is asked": read.identical,
        "are of two systems that gave the same response: it is asked once": read.shared,
        "repeat a row, and are left out": read.repeated,
    }
    for what, count in counts.items():
        if count:
            _say(f"{Path(source).name}: pairs that {what}: {count:,}")
    if not to_label:
        raise DataError(f"{source}: all its pairs are among those with known answers, so that none is left to label")
    return {**known, PAIR: to_label, EQUAL: [one for one in read.pairs if one[0].identical]}


def _prepare(project: Project, names: Sequence[str], join: bool, new_links: Sequence[str], served: Any) -> None:
    """Check what is asked for, and set the rest of the rules."""
    from dataclasses import replace

    from afarm_people.signing_in import JOIN, ORGANISER
    from afarm_people.stopping import decision, find_systems

    store = project.store
    has_links = bool(names or join or store.get(JOIN) or store.row("SELECT 1 FROM people WHERE secret != ''"))
    if problems := served.check(is_open=not has_links):
        raise ConfigError(problems)
    known = [person.name for person in store.people()]
    if unknown := [name for name in new_links if name not in (JOIN, ORGANISER, *names) and not store.find_person(name)]:
        raise ConfigError([f"--new-link {unknown[0]}: nobody here is called that.{did_you_mean(unknown[0], known)}"])
    project.rules = replace(project.rules, is_open=not has_links)
    if project.rules.until_decided:
        find_systems(store)

        def decide() -> str:
            if found := decision(store, project.rules.each):
                _say(f"Decided: {found} Nobody is given further pairs.")
            return found

        project.decide = decide


def _make_links(project: Project, names: Sequence[str], join: bool, new_links: Sequence[str]) -> list[tuple[str, str]]:
    """Make the links that are asked for. Returns new ones by name."""
    from afarm_people.signing_in import JOIN, OPEN, ORGANISER, renew_link, renew_secret

    store, links, has_links = project.store, [], not project.rules.is_open
    for name in dict.fromkeys([*names, *(name for name in new_links if name not in (JOIN, ORGANISER))]):
        if (person := store.find_person(name)) is None or name in new_links:
            links.append((name, renew_link(store, person or project.enter(name))))
    wanted = {JOIN: join, ORGANISER: has_links}
    for name, path in ((JOIN, "/join/"), (ORGANISER, "/organiser/in/")):
        if name in new_links or (wanted[name] and not store.get(name)):
            links.append((name, path + renew_secret(store, name)))
            if name == ORGANISER:
                with store.writing() as db:
                    db.execute("DELETE FROM sessions WHERE person IS NULL")
    if not has_links:  # anew at every start, and open pages stay signed in
        project.open_link = f"/open/{renew_secret(store, OPEN)}"
    return links


def print_addresses(project: Project, served: Any, base: str, links: Sequence[tuple[str, str]]) -> None:
    """Print where the page is, and the links that were made."""
    store, counts = project.store, project.summary()
    if not served.is_secure and (served.address or not served.is_loopback):
        _say("Warning: without TLS, whoever is on the way can read links and labels.")
        _say("Give --certificate FILE --key FILE, or a proxy with TLS and --address https://NAME")
    if project.rules.is_open:
        _say(f"Label: {base}{project.open_link} (Ctrl-C ends it). Then the organiser's page: {base}/organiser")
    else:
        _say(f"Served at {base}/ (Ctrl-C ends it).")
    for name, path in links:
        _say(f"  {name}: {base}{path}{PROLIFIC if name == 'join' else ''}")
    if not project.rules.is_open:
        shown = "Links are shown once, and only their digests kept." if links else "Links that were made still hold."
        _say(f"{shown} To make one again: --new-link NAME")
    if project.decision:
        _say(f"Decided: {project.decision} Nobody is given further pairs.")
    _say(f"{_count(counts['labels'], 'label')} of {_count(counts['pairs'], 'pair')} so far, in {store.path}")


def _take(project: Project, file: str, scale: str | None) -> None:
    """Take labels of another tool into the store."""
    from afarm_people.other_tools import read_answers

    answers, others = read_answers(project.store, file, scale)
    new, changed = project.store.take_labels(map(astuple, answers))
    _say(f"{_count(new, 'new label')} taken from {file}, of {_count(len(answers), 'label')} of these pairs")
    if changed or others:
        _say(f"{changed:,} replace a label, and {_count(others, 'label')} of other pairs left out.")


def _end(
    project: Project,
    export: Path | None,
    form: Form,
    discard: str | None,
    reason: str,
    delete: str | None,
    source: Path,
    is_drawn: bool,
) -> None:
    """Do what needs no page: discard or delete a person, export the labels."""
    if export:
        _require_same_pairs(project.store, source)
    if discard:
        if not reason.strip():
            raise ConfigError([f"--discard {discard} needs a reason: --reason TEXT"])
        project.store.discard(_person(project.store, discard), reason.strip())
        _say(f"{discard}'s labels are left out from now on, and others are given those pairs.")
    if delete:
        count = project.store.delete_person(_person(project.store, delete))
        _say(f"{delete} is deleted, with {_count(count, 'label')}.")
    if export and (form == "label_studio" or form == "argilla" or form == "potato"):
        from afarm_people.other_tools import write_tasks

        files = write_tasks(project.store, form, export, project.rules.tie)
        _say(f"{project.store.count_pairs():,} pairs to be labelled written to {' and '.join(map(str, files))}")
        _say("Take the labels from there by the same command, with --import FILE in place of --export and --as.")
    elif export:
        _export(project, export, form, is_drawn)


def _export(project: Project, export: Path, form: Form, is_drawn: bool) -> None:
    from afarm import write_rows
    from afarm_people.other_tools import as_vote, write_csv

    rows = list(project.export())
    if not rows:
        raise DataError(f"{project.store.path}: there are no labels yet")
    if form == "csv":
        export.write_text(write_csv(rows), "utf-8", "backslashreplace")
    else:
        write_rows(export, map(as_vote, rows) if form == "arena" else rows)
    people, pairs = len({row["annotator"] for row in rows}), project.summary()
    by = "1 person" if people == 1 else f"{people:,} people"
    _say(f"{_count(len(rows), 'label')} by {by} written to {export}")
    _say(f"{pairs['done']:,} of {_count(pairs['pairs'], 'pair')} labelled by as many people as wanted.")
    if project.decision:
        _say(f"Decided: {project.decision}")
    if form == "arena":
        _say('Votes know no "slightly", no reason and no probability of the draw: these are not in the file.')
    elif is_drawn:
        _say(f"Boards in people's units: afarm leaderboard --people {shlex.quote(str(export))}")
    else:
        _say(f"Learn from them: afarm run --annotator {shlex.quote(f'human:{export}')}")


def _compare(project: Project, judged: Sequence[str]) -> None:
    """Say how far people agree, who stands out, and how judges compare."""
    from statistics import fmean

    from afarm_people.organiser import describe_project, rate_people
    from afarm_people.other_tools import read_answers

    figures, labels = describe_project(project), project.store.labels()
    if figures["agreement"] is not None:
        alpha = "" if figures["alpha"] is None else f" (Krippendorff's alpha {figures['alpha']:.2f})"
        _say(f"People agree with each other on {100 * figures['agreement']:.0f} % of their labels{alpha}.")
    for one in figures["people"]:
        if one["flags"] and one["person"].state == "active":
            _say(f"{one['person'].pseudonym} stands out: {'; '.join(one['flags'])}")
    for file in judged:
        wins = {
            one.pair: (one.choice > 0) + 0.5 * (one.choice == 0) for one in read_answers(project.store, file, None)[0]
        }
        same = [1 - abs(one.win - wins[one.pair.id]) for one in labels if one.pair.id in wins]
        rating = rate_people(labels, wins).raters.get(None)
        more = f"; right on {100 * rating[0]:.0f} % (Dawid and Skene), kappa {rating[1]:.2f}" if rating else ""
        share = f"{100 * fmean(same):.0f} %" if same else "none"
        _say(f"The judge of {file} agrees with {share} of {len(same):,} labels{more}.")


def _require_same_pairs(store: ProjectStore, source: Path) -> None:
    """Raise `DataError` if the labels are of other pairs than those named."""
    from afarm_people.draw import read_pairs
    from afarm_people.store import EQUAL, PAIR

    there = {id for kind in (PAIR, EQUAL) for id, *_ in store.pairs_in_order(kind)}
    named = {*there}
    with suppress(DataError):  # the option that says what its labels mean may not be given again
        named = {pair.id for pair, _ in read_pairs(str(source)).pairs} if source.exists() else named
    if named and there.isdisjoint(named):
        raise DataError(f"{store.path} has labels of other pairs than {source}: name the file of their pairs instead")


def _person(store: ProjectStore, name: str) -> Person:
    if (person := store.find_person(name)) is None:
        known = [person.name for person in store.people()]
        raise ConfigError([f"nobody here is called {name!r}.{did_you_mean(name, known)}"])
    return person


def name_draw(runs: Sequence[str]) -> str:
    """Name the file of a draw by its runs; of paths, and of very many runs, with a digest of them all."""
    names = ["".join(c if c.isalnum() or c in "-_" else "-" for c in Path(run).name) for run in runs]
    name, places = "-".join(names), [str(Path(run).expanduser().resolve()) if "/" in run else run for run in runs]
    is_plain = len(name) <= 100 and not any("/" in run for run in runs)
    return name if is_plain else f"{name[:100]}-{seeding.digest(*places, length=8)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    err().print(text, markup=False)
