"""The web application: the page on which people label, their sign-in, and the organiser's page.

Pages are whole forms that work without scripts; `label.js` adds keys, time and patience with a lost connection. What
a form changes is on disk before the answer is sent.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from afarm import StoreError, seeding
from afarm.report import visible
from afarm.results import json_text
from afarm_people import signing_in
from afarm_people.organiser import describe_project
from afarm_people.rules import Project, StaleError
from afarm_people.signing_in import JOIN, OPEN, ORGANISER
from afarm_people.store import Assignment, Person

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a form would say that it comes from nowhere
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STATIC = {"label.js": "text/javascript", "label.css": "text/css"}
FOREVER = "private, max-age=31536000, immutable"
"""For scripts and styles, whose links hold a digest of them: pages after the first load without them."""
MOST_BODY = 64 * 1024
"""Bytes of a form that are read."""
CHOICES = {"-2": -2, "-1": -1, "0": 0, "1": 1, "2": 2}
OUTSIDE = {
    "prolific": ("PROLIFIC_PID", "STUDY_ID", "SESSION_ID"),
    "mturk": ("workerId", "assignmentId", "hitId"),
}
"""The ids with which services send people, the person's first."""
PROLIFIC_END = "https://app.prolific.com/submissions/complete?cc="
OTHER_NAME = "Open this page at the address that afarm label printed, or start it with --address https://NAME."
REASON = 500
"""Characters of a reason for discarding somebody."""


class Refusal(Exception):
    """A request that is not answered: its status, and a sentence for people."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class LabelPages:
    """Answers to requests, by the rules of a project."""

    def __init__(self, project: Project, secure: bool = False, public: str = ""):
        self.project, self.store, self.secure, self.public = project, project.store, secure, public
        self.cookie = f"afarm_label_{self.store.project}"

    # ---------------------------------------------------------------------------------------------------- signing in

    def session(self, request: Request) -> tuple[str, Person | None]:
        """The cookie of a request and whose session it is; ("", None) if it is nobody's."""
        cookie = request.cookies.get(self.cookie, "")
        is_valid, person = signing_in.find_session(self.store, cookie)
        return (cookie, person) if is_valid else ("", None)

    def person(self, request: Request) -> tuple[str, Person]:
        cookie, person = self.session(request)
        if person is None:
            raise Refusal(403, "Open the page by the link that you were given, or that afarm label printed.")
        return cookie, person

    def organiser(self, request: Request) -> str:
        """The cookie of the organiser, who on an open page is the one person who labels. Raises `Refusal`."""
        cookie, person = self.session(request)
        if cookie and (person is None or self.project.rules.is_open):
            return cookie
        raise Refusal(403, "This page is the organiser's: open it by the link that afarm label printed.")

    def signed_in(self, person: Person | None, to: str = "/") -> Response:
        response = RedirectResponse(to, 303)
        cookie, year = signing_in.begin_session(self.store, person), 365 * 86400
        response.set_cookie(self.cookie, cookie, year, httponly=True, samesite="lax", secure=self.secure)
        return response

    def sign_in(self, request: Request) -> Response:
        link = request.path_params["link"]
        if (person := signing_in.person_of_link(self.store, link)) is None:
            raise Refusal(403, "This link is not valid, or a newer one was made. Ask for another.")
        return self.signed_in(person)

    def sign_in_organiser(self, request: Request) -> Response:
        if not signing_in.matches(request.path_params["secret"], self.store.get(ORGANISER)):
            raise Refusal(403, "This link is not valid, or a newer one was made.")
        return self.signed_in(None, "/organiser")

    def join(self, request: Request) -> Response:
        """Let in whom a service sends, with its ids; the same ids are the same person."""
        if not signing_in.matches(request.path_params["secret"], self.store.get(JOIN)):
            raise Refusal(403, "This link is not valid, or a newer one was made.")
        query = request.query_params
        names = next((names for names in OUTSIDE.values() if query.get(names[0])), None)
        if query.get("assignmentId") == "ASSIGNMENT_ID_NOT_AVAILABLE":
            raise Refusal(403, "This is a preview: accept the task first.")
        if names is None:
            raise Refusal(400, "The link lacks your id, PROLIFIC_PID or workerId: open it from your study.")
        outside = {name: query[name][:100] for name in names if query.get(name)}
        with self.store.writing():
            name = f"{names[0]} {outside[names[0]]}"
            person = self.store.find_person(name) or self.project.enter(name, outside=outside)
        if person.outside != outside:
            raise Refusal(403, "You have taken part before, in another session: nobody takes part twice.")
        return self.signed_in(person)

    # ------------------------------------------------------------------------------------------------------ labelling

    def start(self, request: Request) -> Response:
        """The next pair; the organiser's page for the organiser."""
        cookie, person = self.session(request)
        if cookie and person is None:
            return RedirectResponse("/organiser", 303)
        return RedirectResponse(self.next_path(self.person(request)[1]), 303)

    def let_in(self, request: Request) -> Response:
        """Begin a session of the one person of an open page, by its link."""
        is_right = signing_in.matches(request.path_params["secret"], self.store.get(OPEN))
        if not is_right or not self.project.rules.is_open:
            raise Refusal(403, "This link is not valid, or a newer one was made.")
        with self.store.writing():
            person = next(iter(self.store.people()), None) or self.project.enter("me")
        return self.signed_in(person)

    def next_path(self, person: Person, after: int = 0) -> str:
        number = self.project.next_number(person, after)
        return "/done" if number is None else f"/pair/{number}"

    def show(self, request: Request) -> Response:
        cookie, person = self.person(request)
        number = signing_in.read_number(request.path_params["number"])
        one = self.project.look(person, number)
        return RedirectResponse(self.next_path(person), 303) if one is None else self.page_of(cookie, person, one)

    def page_of(self, cookie: str, person: Person, one: Assignment, problem: str = "") -> Response:
        done, total = self.project.progress(person)
        shown = [one.row["output_1"], one.row["output_2"]]
        messages = [(turn["role"], turn["content"]) for turn in one.row.get("messages") or ()]
        return self.render(
            "label.html.jinja",
            409 if problem else 200,
            one=one,
            responses=shown if one.shown == "12" else shown[::-1],
            messages=messages,
            done=done,
            total=total,
            qualifying=person.state == "qualifying",
            rules=self.project.rules,
            guideline=Markup(self.project.rules.guideline),
            token=signing_in.form_token(cookie),
            problem=problem,
        )

    def answer(self, request: Request, form: Mapping[str, str]) -> Response:
        cookie, person = self.person(request)
        require_own(request, form, cookie, self.public)
        number, choice = signing_in.read_number(request.path_params["number"]), form.get("choice", "")
        if choice != "skip" and (choice not in CHOICES or (choice == "0" and not self.project.rules.tie)):
            raise Refusal(400, "Choose one of the answers.")
        reason = form.get("reason", "") if self.project.rules.reasons else ""
        version, seconds = _number(form.get("version")), _number(form.get("seconds"))
        try:
            with self.store.writing():  # the label and the next pair are one write
                if choice == "skip":
                    self.project.skip(person, number)
                else:
                    self.project.answer(person, number, CHOICES[choice], reason, int(version or 0), seconds)
                path = self.next_path(person, number if choice == "skip" else 0)
        except StaleError as error:
            return self.stale(request, cookie, person, str(error))
        return JSONResponse({"next": path}) if wants_json(request) else RedirectResponse(path, 303)

    def stale(self, request: Request, cookie: str, person: Person, problem: str) -> Response:
        one = self.project.look(person, signing_in.read_number(request.path_params["number"]))
        if wants_json(request):
            path = f"/pair/{one.number}" if one else self.next_path(person)
            return JSONResponse({"problem": problem, "next": path}, 409)
        return self.page_of(cookie, person, one, problem) if one else RedirectResponse(self.next_path(person), 303)

    def unmarked(self, request: Request) -> Response:
        """The next pair without a label."""
        return RedirectResponse(self.next_path(self.person(request)[1]), 303)

    def done(self, request: Request) -> Response:
        """The end: thanks, the code to hand in, and the way to pairs that were skipped.

        The code is for who has labelled, and has nothing left; whoever has not seen a pair yet is sent there.
        """
        _, person = self.person(request)
        number = self.project.next_number(person)  # which grades, too
        person = self.store.find_person(person.id) or person
        open_numbers = [] if number is None else self.project.open_numbers(person)
        if number is not None and not dict(open_numbers)[number]:
            return RedirectResponse(f"/pair/{number}", 303)
        rules, (done, total) = self.project.rules, self.project.progress(person)
        code = "" if open_numbers or not done else rules.code
        if person.state in ("failed", "discarded"):
            code = rules.code_failed if person.state == "failed" else ""
        return self.render(
            "done.html.jinja",
            person=person,
            done=done,
            total=total,
            skipped=[number for number, _ in open_numbers],
            decided=bool(self.project.decision),
            code=code,
            link=PROLIFIC_END + quote(code, safe="") if code and "PROLIFIC_PID" in person.outside else "",
            is_open=rules.is_open,
        )

    # ------------------------------------------------------------------------------------------------- the organiser

    def organise(self, request: Request) -> Response:
        cookie = self.organiser(request)
        figures = describe_project(self.project)
        return self.render("organiser.html.jinja", **figures, token=signing_in.form_token(cookie))

    def change(self, request: Request, form: Mapping[str, str]) -> Response:
        """Discard, restore or delete a person."""
        require_own(request, form, self.organiser(request), self.public)
        person = self.store.find_person(int(_number(form.get("person")) or 0))
        what, why = request.path_params["what"], form.get("why", "").strip()[:REASON]
        if what not in ("discard", "restore", "delete"):
            raise Refusal(404, "There is no such page.")
        if person is None:
            raise Refusal(404, "There is no such person (any more).")
        if what == "discard" and not why:
            raise Refusal(400, "Say why this person is discarded.")
        if what == "delete" and form.get("sure") != "yes":
            raise Refusal(400, "Tick that you are sure: deleted labels do not come back.")
        if what == "discard":
            self.store.discard(person, why)
        elif what == "restore":
            self.project.restore(person)
        else:
            try:
                self.store.delete_person(person)
            except StoreError as error:
                raise Refusal(503, str(error)) from error
        return RedirectResponse("/organiser", 303)

    def download(self, request: Request) -> Response:
        self.organiser(request)
        text = "".join(json_text(row) + "\n" for row in self.project.export())
        headers = {"content-disposition": 'attachment; filename="labels.jsonl"'}
        return Response(text.encode("utf-8", "replace"), headers=headers, media_type="application/jsonl")

    def render(self, name: str, status: int = 200, **values: Any) -> Response:
        text = _templates().get_template(name).render(**values)
        return Response(text.encode("utf-8", "replace"), status, media_type="text/html")

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refusal(404, "There is no such file.")
        return Response(_read(name), headers={"cache-control": FOREVER}, media_type=STATIC[name])


def label_app(project: Project, hosts: Collection[str] = (), secure: bool = False, public: str = "") -> Starlette:
    """Make the application. `hosts` are names that it answers to, beside addresses and localhost.

    `public` is the name, with its port if it is not the scheme's, that people open where a proxy passes on another.
    """
    pages = LabelPages(project, secure, public)

    def form(take: Callable[[Request, Mapping[str, str]], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await run_in_threadpool(take, request, await read_form(request))

        return respond

    def refuse(request: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, Refusal)
        if wants_json(request):
            return JSONResponse({"problem": str(refusal)}, refusal.status)
        return pages.render("refusal.html.jinja", refusal.status, sentence=str(refusal))

    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse requests under another name, and add headers to every answer."""
        is_own = is_own_host(request.headers.get("host", ""), {"localhost", *hosts})
        response = await answer(request) if is_own else PlainTextResponse(OTHER_NAME, status_code=403)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    routes = [
        Route("/", pages.start),
        Route("/in/{link}", pages.sign_in),
        Route("/join/{secret}", pages.join),
        Route("/open/{secret}", pages.let_in),
        Route("/pair/{number}", pages.show),
        Route("/pair/{number}", form(pages.answer), methods=["POST"]),
        Route("/next", pages.unmarked),
        Route("/done", pages.done),
        Route("/organiser", pages.organise),
        Route("/organiser/labels.jsonl", pages.download),
        Route("/organiser/in/{secret}", pages.sign_in_organiser),
        Route("/organiser/{what}", form(pages.change), methods=["POST"]),
        Route("/static/{name}", pages.static),
    ]
    middleware = [Middleware(BaseHTTPMiddleware, dispatch=guard)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={Refusal: refuse})


def is_own_host(named: str, hosts: Collection[str]) -> bool:
    """Tell if a Host header is an address or one of these names: another name may be of another's page."""
    try:
        host, port = (parts := urlsplit(f"//{named.lower()}")).hostname or "", parts.port
        if host not in hosts:
            ipaddress.ip_address(host)
        written = f"[{host}]" if ":" in host else host
    except ValueError:
        return False
    return named.lower() in (written, f"{written}:{port}")


def require_own(request: Request, form: Mapping[str, str], cookie: str, public: str = "") -> None:
    """Require that a form is of the page under this name or the `public` one. Raises `Refusal`."""
    origin = request.headers.get("origin")
    own = origin is None or urlsplit(origin).netloc in {request.headers.get("host", ""), public} - {""}
    site = request.headers.get("sec-fetch-site", "same-origin")
    if (
        not own
        or site != "same-origin"
        or not signing_in.matches(form.get("token", ""), signing_in.digest_secret(signing_in.form_token(cookie)))
    ):
        raise Refusal(403, "This form is not of this page, or you signed in anew meanwhile: load the page again.")


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form, the last of each name. Raises `Refusal` if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise Refusal(413, "The reason is too long.")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def wants_json(request: Request) -> bool:
    return request.headers.get("accept", "") == "application/json"


def _number(text: str | None) -> float | None:
    """Read a number of a form; None for what is none."""
    try:
        number = float(json.loads(text or "null"))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return number if 0 <= number < 2**53 else None


@cache
def _templates() -> Environment:
    found = Environment(
        autoescape=True, loader=FunctionLoader(_read), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.globals["static"] = {name: f"/static/{name}?{seeding.digest(_read(name), length=8)}" for name in STATIC}
    found.finalize = lambda value: visible(value) if type(value) is str else value
    return found


@cache
def _read(name: str) -> str:
    return resources.files("afarm_people").joinpath("page", name).read_text(encoding="utf-8")
