"""The pages over HTTP: labels, stale and foreign forms, people apart, links, hostile texts."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from afarm_people import signing_in
from afarm_people.app import label_app
from afarm_people.guideline import render_markdown
from afarm_people.rules import Project, Rules
from afarm_people.server import Place, take_port
from afarm_people.store import GOLD, ProjectStore
from label_client import HOME, Browser, make_project, open_page

from afarm import Instruction, Message, Pair


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, is_open=True)


def enter(project: Project, name: str, **client: Any) -> Browser:
    """Sign in as a person by a link of their own."""
    found = Browser(project, **client)
    found.open(signing_in.renew_link(project.store, project.store.find_person(name) or project.enter(name)))
    return found


def organise(project: Project) -> Browser:
    secret = signing_in.new_secret()
    project.store.set(signing_in.ORGANISER, signing_in.digest_secret(secret))
    found = Browser(project)
    found.open(f"/organiser/in/{secret}")
    assert found.status == 200
    return found


def test_a_person_labels_all_pairs_and_the_export_says_what_they_chose(project: Project) -> None:
    me, shown = open_page(project), list[tuple[str, list[str]]]()
    for choice in ("-2", "-1", "0", "1", "2", "2"):
        shown.append((choice, me.responses()))
        me.send(choice, {"reason": f" why {choice} "})
    assert (me.path, "6 labels are saved" in me.page) == ("/done", True)

    by_task = {row["output_1"]: row for row in project.export()}
    assert len(by_task) == 6
    for choice, (first, second) in shown:
        row = by_task.get(first) or by_task[second]
        chosen = {"-2": first, "-1": first, "0": None, "1": second, "2": second}[choice]
        better = None if chosen is None else 1 if chosen == row["output_1"] else 2
        assert row["preference"] == (better or 1.5)
        assert row["strength"] == {"0": None, "-1": 0.5, "1": 0.5}.get(choice, 1.0)
        assert row["order"] == ("12" if first == row["output_1"] else "21")
        assert (row["reason"], row["source"]) == (f"why {choice}", "human")
        assert re.fullmatch("person-[0-9a-f]{8}", row["annotator"])
    orders = {row["order"] for row in by_task.values()}
    assert orders == {"12", "21"}


def test_back_skip_and_next_unlabelled(project: Project) -> None:
    me = open_page(project)
    me.send("2")
    me.send("skip")
    me.send("-1")
    assert me.path == "/pair/4"
    me.open("/pair/3")
    assert 'aria-pressed="true"' in me.page
    assert 'href="/next"' in me.page
    me.send("2", {"reason": "on second thoughts"})  # another answer replaces it
    assert me.path == "/pair/4"
    for _ in range(3):
        me.send("2")
    assert me.path == "/pair/2"  # the skipped one comes last
    me.send("skip")
    assert "1 pair is left" in " ".join(me.page.split())
    me.open("/pair/2")
    me.send("0")
    assert "6 labels are saved" in me.page
    assert sorted(row["reason"] for row in project.export()) == [*[""] * 5, "on second thoughts"]


def test_the_same_form_twice_counts_once_and_a_stale_one_changes_nothing(project: Project) -> None:
    me = open_page(project)
    path, form = me.path, {**me.fields(), "choice": "2"}
    for _ in range(2):  # a double click
        answer = me.client.post(path, data=form, headers={"accept": "application/json", "origin": HOME})
        assert (answer.status_code, answer.json()) == (200, {"next": "/pair/2"})
    other = me.client.post(path, data={**form, "choice": "-2"}, headers={"origin": HOME})  # an older tab
    assert other.status_code == 409
    assert "You answered this pair in another window meanwhile" in other.text
    [label] = project.store.labels()
    assert abs(label.choice) == 2
    assert (label.choice == 2) == (label.shown == "12")


def test_labels_survive_and_forms_go_on_after_a_new_start(project: Project, tmp_path: Path) -> None:
    me = open_page(project)
    me.send("2")
    again = Browser(make_project(tmp_path, is_open=True))  # nothing was closed
    again.client.cookies = me.client.cookies
    again.page, again.path = me.page, me.path
    again.send("-2")
    assert again.path == "/pair/3"
    assert len(project.store.labels()) == 2


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"origin": "http://away.example"}, {}),
        ({"sec-fetch-site": "cross-site"}, {}),
        ({}, {"token": "0" * 64}),
        ({}, {"token": ""}),
    ],
)
def test_forms_of_other_sites_are_refused(project: Project, headers: dict[str, str], fields: dict[str, str]) -> None:
    me = open_page(project)
    me.send("2", fields, **headers)
    assert me.status == 403
    assert project.store.labels() == []


@pytest.mark.parametrize("choice", ["", "3", "2.0", "__proto__", "-0"])
def test_what_is_no_answer_is_refused(project: Project, choice: str) -> None:
    me = open_page(project)
    assert "Choose one of the answers" in me.send(choice)
    assert (me.status, project.store.labels()) == (400, [])


def test_a_form_that_is_too_large_is_refused(project: Project) -> None:
    me = open_page(project)
    me.send("2", {"reason": "w" * 100_000})
    assert me.status == 413


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost:8650", "127.0.0.1", "10.1.2.3:9", "[::1]:8650", "labels.lab.org")),
        *((host, 403) for host in ("away.example", "127.0.0.1.away.example", "[::1].away.example", "a b", "")),
    ],
)
def test_the_page_answers_under_its_own_names_alone(project: Project, host: str, status: int) -> None:
    client = Browser(project, app=label_app(project, {"labels.lab.org"})).client
    answer = client.get("/static/label.css", headers={"host": host})
    assert answer.status_code == status
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_scripts_and_styles_are_kept_and_pages_are_not(project: Project) -> None:
    me = open_page(project)
    links = re.findall(r'"(/static/[^"]+)"', me.page)
    assert len(links) == 2
    for path in links:
        answer = me.client.get(path)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert re.fullmatch(r"/static/label\.\w+\?\w{8}", path)  # another file has another link
    assert me.client.get(me.path).headers["cache-control"] == "no-store"
    with take_port("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # else each page takes 40 ms longer


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/base.html.jinja",
        "/static//etc/passwd",
    ],
)
def test_files_other_than_script_and_style_are_not_there(project: Project, path: str) -> None:
    assert open_page(project).client.get(path).status_code == 404


def test_people_see_nothing_of_others_and_nothing_of_the_organisers(tmp_path: Path) -> None:
    project = make_project(tmp_path, each=2)
    ann, bo, nobody = enter(project, "ann"), enter(project, "bo"), Browser(project)
    ann.send("2", {"reason": "secret"})
    assert "secret" in ann.open("/pair/1")
    assert "secret" not in bo.open("/pair/1")
    for client in (ann, bo, nobody):
        for path in ("/organiser", "/organiser/labels.jsonl"):
            assert (client.open(path), client.status)[1] == 403
            assert "secret" not in client.page
    for path in ("/", "/pair/1", "/done", "/next"):
        nobody.open(path)
        assert nobody.status == 403
    ann.open("/pair/1")
    [of_ann] = [person.id for person in project.store.people() if person.name == "ann"]
    form = {"token": ann.fields()["token"], "person": str(of_ann), "sure": "yes"}
    assert ann.client.post("/organiser/delete", data=form, headers={"origin": HOME}).status_code == 403


def test_a_page_of_one_person_opens_by_its_link_alone(project: Project) -> None:
    me, other = open_page(project), Browser(project)  # of another user of this machine
    for path in ("/", "/pair/1", "/organiser", "/organiser/labels.jsonl", "/open/x", "/open/"):
        other.open(path)
        assert (path, other.status) == (path, 404 if path == "/open/" else 403)
    open_page(project)  # a new start makes another link
    for path in ("/", "/organiser"):
        me.open(path)
        assert me.status == 200
    shared = make_project(project.store.path.parent)
    other = Browser(shared)
    other.open(f"/open/{signing_in.renew_secret(shared.store, signing_in.OPEN)}")
    assert other.status == 403


def test_a_link_is_of_one_person_and_a_new_one_ends_the_old(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    ann, bo = project.enter("ann"), project.enter("bo")
    old = signing_in.renew_link(project.store, ann)
    new = signing_in.renew_link(project.store, ann)
    secret = new.partition(".")[2]
    for path, status in {
        old: 403,
        f"/in/{bo.id}.{secret}": 403,
        "/in/": 404,
        "/in/x.y": 403,
        "/in/1.": 403,
        new: 200,
    }.items():
        client = Browser(project)
        client.open(path)
        assert (path, client.status) == (path, status)
    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_people_whom_services_send_take_part_once_and_get_their_code(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=2, each=5, code="C0DE&1")
    secret = signing_in.new_secret()
    project.store.set(signing_in.JOIN, signing_in.digest_secret(secret))
    ids = "?PROLIFIC_PID=p1&STUDY_ID=s&SESSION_ID=x"
    first, again = Browser(project), Browser(project)
    first.open(f"/join/{secret}{ids}")
    again.open(f"/join/{secret}{ids}")
    assert (first.path, len(project.store.people())) == ("/pair/1", 1)
    for wrong, status in {"?SESSION_ID=x": 400, ids.replace("=x", "=y"): 403}.items():
        again.open(f"/join/{secret}{wrong}")
        assert again.status == status
    preview = "?assignmentId=ASSIGNMENT_ID_NOT_AVAILABLE&hitId=h&workerId=w"
    assert "This is a preview" in again.open(f"/join/{secret}{preview}")
    first.send("2")
    first.send("2")
    assert "C0DE&amp;1" in first.page
    assert 'href="https://app.prolific.com/submissions/complete?cc=C0DE%261"' in first.page
    assert not any("p1" in str(row) for row in project.export())


def test_who_fails_the_gold_pairs_labels_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=3, each=2, code="GOOD", code_failed="BAD")
    gold = [(Pair(Instruction(f"gold {n}"), "wrong", "right"), {"p2": 1.0}) for n in range(4)]
    project.store.add_pairs(gold, GOLD, ordered=True)
    good, bad = enter(project, "good"), enter(project, "bad")
    assert "Test pair 1" in good.page
    for n in range(4):
        good.prefer("wrong" if n == 0 else "right")
        bad.prefer("wrong" if n < 2 else "right")
    assert good.path == "/pair/5"
    assert "better" in good.page
    assert (bad.path, "BAD" in bad.page, "GOOD" in bad.page) == ("/done", True, False)
    good.open("/pair/2")
    assert good.path == "/pair/5"  # the test is over
    for _ in range(3):
        good.prefer("better")
    assert "GOOD" in good.page
    assert {person.name: person.why for person in project.store.people()} == {
        "good": "3 of 4 gold pairs right",
        "bad": "2 of 4 gold pairs right",
    }
    assert len(list(project.export())) == 3
    for person in project.store.people():  # whoever is taken back has not passed by that
        project.store.discard(person, "by mistake")
        project.restore(project.store.find_person(person.id) or person)
    assert {person.name: person.state for person in project.store.people()} == {"good": "active", "bad": "failed"}


def test_the_organiser_discards_restores_and_deletes(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=2, pay=0.25)
    ann, organiser = enter(project, "ann"), organise(project)
    ann.send("2")
    ann.send("2")
    bo = enter(project, "bo")
    assert bo.path == "/done"
    assert "$0.50" in organiser.open("/organiser")
    form = {**organiser.fields(), "person": "1", "why": "answers at random"}
    post = {"headers": {"origin": HOME}}
    assert organiser.client.post("/organiser/discard", data={**form, "why": " "}, **post).status_code == 400
    assert "answers at random" in organiser.client.post("/organiser/discard", data=form, **post).text
    assert list(project.export()) == []
    assert "Your part has ended" in ann.open("/done")
    bo.open("/")
    assert bo.path == "/pair/1"  # reopened
    organiser.client.post("/organiser/restore", data=form, **post)
    assert len(list(project.export())) == 2
    assert organiser.client.post("/organiser/delete", data=form, **post).status_code == 400
    organiser.client.post("/organiser/delete", data={**form, "sure": "yes"}, **post)
    assert [person.name for person in project.store.people()] == ["bo"]
    ann.open("/")
    assert ann.status == 403
    assert b"answers at random" not in (tmp_path / "people.sqlite").read_bytes()


HOSTILE = [
    "<script>alert(1)</script>",
    "</div></section></main><img src=x onerror=alert(1)>",
    '" autofocus onfocus=alert(1) x="',
    "{{ 7 * 191 }} {% raw %}",
    "\u202eevil\u2069 \u200f",
    "\0\x1b[2J\x07",
    "\ud800",
    "مرحبا بالعالم",
    "   ",
    "w" * 1_000_000,
]


def test_hostile_texts_are_shown_as_text(tmp_path: Path) -> None:
    store = ProjectStore(tmp_path / "people.sqlite")
    turns = tuple(Message(role, text) for role in ("system", "user", "assistant") for text in HOSTILE[:-1])
    pairs = [(Pair(Instruction(text, text, messages=turns), text, f"{text}2", 0, text, text), {}) for text in HOSTILE]
    store.add_pairs(pairs)
    project = Project(store, Rules(guideline=render_markdown("\n\n".join(HOSTILE[:-1]))))
    me = open_page(project)
    for _ in HOSTILE:
        assert me.status == 200
        for raw in ("<script>alert", "<img", 'onfocus=alert(1) x=""', "\0", "1337"):
            assert raw not in me.page
        me.send("2", {"reason": HOSTILE[1]})
    assert me.path == "/done"
    assert len(list(project.export())) == len(HOSTILE)
    me.open("/organiser")
    assert me.status == 200


def test_a_guideline_links_to_pages_alone() -> None:
    rendered = render_markdown(
        "[a](javascript:x) [b](https://lab.org) ![c](http://away/x.png) <b>d</b> [e](data:text/html,x) <https://lab.org>"
    )
    assert re.findall(r'<(\w+) (\w+)="([^"]*)"', rendered) == [
        ("a", "href", "https://lab.org"),
        ("a", "href", "http://away/x.png"),
        ("a", "href", "https://lab.org"),
    ]


def test_the_code_is_for_who_has_labelled_and_has_nothing_left(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=2, code="C0DE")
    gold = [(Pair(Instruction("gold"), "wrong", "right"), {"p2": 1.0})]
    project.store.add_pairs(gold, GOLD)
    ann, late = enter(project, "ann"), enter(project, "late")
    for word in ("right", "better", "better"):  # before each answer, the end is not shown
        ann.open("/done")
        assert (ann.path[:6], "C0DE" in ann.page) == ("/pair/", False)
        ann.prefer(word)
    assert "C0DE" in ann.open("/done")
    late.prefer("right")
    assert ("There is nothing to label" in late.open("/done"), "C0DE" in late.page) == (True, False)


def test_an_unknown_change_of_a_person_is_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    enter(project, "ann")
    organiser = organise(project)
    organiser.open("/organiser")
    form = {**organiser.fields(), "person": "1", "why": "x", "sure": "yes"}
    answer = organiser.client.post("/organiser/discrad", data=form, headers={"origin": HOME})
    assert (answer.status_code, len(project.store.people())) == (404, 1)


@pytest.mark.parametrize("number", ["0", "x", "1.5", "\u0663", "9" * 30, "9" * 5000])
def test_numbers_of_pairs_that_are_none_lead_to_the_next(project: Project, number: str) -> None:
    me = open_page(project)
    me.open(f"/pair/{number}")
    assert (me.path, me.status) == ("/pair/1", 200)
    answer = me.client.post(f"/pair/{number}", data={**me.fields(), "choice": "2"}, headers={"origin": HOME})
    assert (answer.url.path, project.store.labels()) == ("/pair/1", [])


def test_numbers_of_forms_that_are_none_are_no_fault(project: Project) -> None:
    me = open_page(project)
    for count, text in enumerate(("9" * 400, "[" * 20_000, "NaN", "1e999", "-1", '"3"'), 1):
        me.send("2", {"seconds": text})
        assert (me.status, len(project.store.labels())) == (200, count)


@pytest.mark.parametrize(
    ("address", "origin", "status"),
    [
        ("https://labels.lab.org", "https://labels.lab.org", 200),
        ("https://Labels.lab.org:443/", "https://labels.lab.org", 200),
        ("https://labels.lab.org:8443", "https://labels.lab.org:8443", 200),
        ("https://labels.lab.org", "https://away.example", 403),
        ("https://labels.lab.org", "null", 403),
        ("", "null", 403),
    ],
)
def test_a_proxy_that_passes_on_its_own_host_is_answered(
    project: Project, address: str, origin: str, status: int
) -> None:
    place = Place(address=address)
    me = Browser(project, app=label_app(project, public=place.public))  # Host: 127.0.0.1:8650, as nginx sends
    me.open(f"/open/{signing_in.renew_secret(project.store, signing_in.OPEN)}")
    me.send("2", origin=origin)
    assert me.status == status


def test_an_address_is_a_scheme_and_a_name() -> None:
    for address in (
        "https://lab.org/labels",
        "lab.org",
        "https://",
        "ftp://lab.org",
        "https://lab.org:x",
        "https://a@b",
    ):
        assert "without a path" in Place(address=address).check(is_open=False)[0]
    assert Place(address="https://lab.org:8443/").check(is_open=False) == []
    assert (Place(address="http://lab.org").is_secure, Place(certificate="c", key="k").is_secure) == (False, True)
