"""The web application: pages, their data, and the files that they load.

All of it is read, but for one request that stops a run. Names in addresses are looked up among what is there, never
joined to a path. A request must name this machine as its host, so that no page of another site reaches the view through
a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from os.path import isfile, islink
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from afarm import AfarmError, DataError
from afarm.report import PAGE as REPORT
from afarm.report import visible
from afarm.results import Place, Store
from afarm_plugins.view.annotators import describe_drift, describe_labels, describe_run_annotators
from afarm_plugins.view.commands import place_words, quote_command
from afarm_plugins.view.comparing import MOST_RUNS, compare_runs
from afarm_plugins.view.costs import describe_costs
from afarm_plugins.view.outputs_query import Query
from afarm_plugins.view.page import PAGES, POLICY, render_shell, static_file
from afarm_plugins.view.pairs import Pairs
from afarm_plugins.view.run_details import describe_details, list_part_commands
from afarm_plugins.view.run_table import describe_row, own_settings
from afarm_plugins.view.sources import SeenRun, Sources
from afarm_plugins.view.stopping import stop
from afarm_plugins.view.stores import SHOWN_FILES, artifact_rows, document_rows, documents, ledger_accounts

LEAST_PACKED = 2000
"""Bytes from which on an answer is sent gzipped."""

DOCUMENT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
"""The policy of documents from output directories: their scripts run in an origin of their own."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class View:
    """The runs of output directories, their data as pages get them, and if they may be stopped."""

    def __init__(self, output_dirs: Sequence[Path], ledger: Place | None = None, may_stop: bool = False):
        self.sources = Sources(output_dirs, ledger)
        self.pairs = Pairs()
        self.token = secrets.token_urlsafe(24) if may_stop else ""

    def find_ledger(self, output_dir: Path) -> Place:
        """Return the ledger of an output directory: the one named for all directories, else its own."""
        return self.sources.ledger if self.sources.ledger is not None else Store(output_dir).ledger_path

    def run(self, run_id: str) -> SeenRun:
        """The run of that id. Raises `DataError` if there is none (any more)."""
        if (run := self.sources.run(run_id)) is None:
            raise DataError(f"no run {run_id[:200]!r} is there, or it was deleted: the table has those that are")
        return run

    # ---------------------------------------------------------------------------------------------- data of pages

    def table(self) -> Any:
        """All runs in a row each, and the directories that they are from."""
        runs = self.sources.runs().values()
        own = own_settings(runs)
        rows = [{**describe_row(run), "settings": own[run.id]} for run in runs]
        command = quote_command("leaderboard", *map(str, self.sources.output_dirs))
        return {"runs": rows, "output_dirs": self.sources.places(), "command": command}

    def details(self, run_id: str) -> Any:
        return describe_details(self.run(run_id))

    def outputs(self, run_id: str, query: Mapping[str, str]) -> Any:
        """The pairs of a run that a query finds, those from `from` on, at most `count`."""
        read = Query.read(query)
        other = self.run(read.flips) if read.flips else None
        start, count = (int(value) if (value := query.get(n, "")).isdecimal() else 0 for n in ("from", "count"))
        run = self.run(run_id)
        return {**self.pairs.listed(run, read, start, count or 100, other), "commands": list_part_commands(run)}

    def pair(self, run_id: str, number: int) -> Any:
        run = self.run(run_id)
        return self.pairs.pair(run, number, self.find_ledger(run.output_dir))

    def comparison(self, run_ids: Sequence[str]) -> Any:
        chosen = list(dict.fromkeys(run_ids))
        if not 2 <= len(chosen) <= MOST_RUNS:
            raise DataError(f"compare 2 to {MOST_RUNS} runs, not {len(chosen)}")
        return compare_runs([self.run(run_id) for run_id in chosen], self.pairs)

    def ledgers(self) -> Any:
        runs = list(self.sources.runs().values())
        shared: dict[str, list[Path]] = {}
        for place in self.sources.output_dirs:
            shared.setdefault(str(self.find_ledger(place)), []).append(place)
        return {
            "ledgers": [
                {
                    **ledger_accounts(self.find_ledger(places[0]), [run for run in runs if run.output_dir in places]),
                    "command": quote_command("ledger", *place_words(places[0], self.sources.ledger)),
                }
                for places in shared.values()
            ]
        }

    def artifacts(self) -> Any:
        runs = list(self.sources.runs().values())
        stores = [
            {
                "output_dir": str(place),
                "rows": artifact_rows(place, runs),
                "command": quote_command("artifacts", "list", *place_words(place)),
            }
            for place in self.sources.output_dirs
        ]
        return {"stores": stores}

    def costs(self) -> Any:
        return describe_costs(self.sources.runs().values(), self.sources.output_dirs, self.sources.ledger)

    def annotators(self) -> Any:
        """The files of labels that there are, and the probes of judges for drift."""
        runs = [run for run in self.sources.runs().values() if run.status == "finished"]
        return {"files": describe_labels(runs), "drift": describe_drift(self.sources.output_dirs, self.sources.ledger)}

    def list_annotators(self, run_id: str, use: str) -> Any:
        """List profiles of the members that labelled in a run, for a use: training or evaluation."""
        run = self.run(run_id)
        return describe_run_annotators(run, use, self.find_ledger(run.output_dir))

    def document(self, address: str) -> Path | None:
        """The file at an address: of a board or study, or the report of a run that these link to."""
        return documents(self.sources.output_dirs).get(address) or self.linked_reports().get(address)

    def linked_reports(self) -> dict[str, Path]:
        """The reports of runs by the addresses that boards and studies link to."""
        places = self.sources.output_dirs
        paths = [(places.index(run.output_dir), run.directory / REPORT) for run in self.sources.runs().values()]
        return {f"{number}/runs/{path.parent.name}/{REPORT}": path for number, path in paths if isfile(path)}

    def documents(self) -> Any:
        return document_rows(self.sources.output_dirs)

    def data(self) -> dict[str, Callable[[], Any]]:
        """Map the files of the data of all runs to the functions that make them."""
        return {
            "runs": self.table,
            "ledger": self.ledgers,
            "artifacts": self.artifacts,
            "costs": self.costs,
            "annotators": self.annotators,
            "boards": self.documents,
        }


def view_app(view: View, hosts: Collection[str] = ()) -> Starlette:
    """Make the application. `hosts` are further names under which it may be asked for, beside addresses."""

    def data(answer: Callable[..., Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return _tagged(request, encode(answer(request, **request.path_params)), "application/json")
            except (AfarmError, OSError) as error:  # files that go meanwhile, or that may not be read
                return JSONResponse({"problem": visible(str(error))}, status_code=404)

        return respond

    def data_of_all(make: Callable[[], Any]) -> Callable[[Request], Response]:
        return data(lambda request: make())

    def page(kind: str, title: str) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            run = request.path_params.get("run", "")
            root = "../" if run else ""
            heading = f"{run}: {title}" if run else title
            return Response(render_shell(kind, heading, root=root, run=run, token=view.token), media_type="text/html")

        return respond

    def static(request: Request) -> Response:
        found = static_file(request.path_params["name"])
        if found is None:
            return PlainTextResponse("no such file", status_code=404)
        return _tagged(request, found[0], found[1])

    def document(request: Request) -> Response:
        return _document(view.document(request.path_params["address"]))

    def report(request: Request) -> Response:
        run = view.sources.run(request.path_params["run"])
        return _document(run.directory / REPORT if run else None)

    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse requests for another host or from pages of other sites; add headers to every answer."""
        problem = refusal(request, {"localhost", *hosts})
        response = PlainTextResponse(problem, status_code=403) if problem else await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    pages = [Route(f"/{file}", page(name, heading)) for name, (file, heading) in PAGES.items()]
    routes = [
        Route("/", page("runs", "Runs")),
        *pages,
        Route("/compare.html", page("compare", "Runs compared")),
        Route("/run/{run}.html", page("run", "run")),
        Route("/outputs/{run}.html", page("outputs", "outputs")),
        Route("/static/{name}", static),
        *[Route(f"/data/{name}.json", data_of_all(make)) for name, make in view.data().items()],
        Route("/data/run/{run}.json", data(lambda _, run: view.details(run))),
        Route("/data/outputs/{run}.json", data(lambda request, run: view.outputs(run, request.query_params))),
        Route("/data/pair/{run}/{number:int}.json", data(lambda _, run, number: view.pair(run, number))),
        Route("/data/compare.json", data(lambda request: view.comparison(request.query_params.getlist("run")))),
        Route("/data/annotators/{run}/{use}.json", data(lambda _, run, use: view.list_annotators(run, use))),
        Route("/document/{address:path}", document),
        Route("/report/{run}.html", report),
        Route("/stop/{run}", partial(stop_run, view), methods=["POST"]),
    ]
    packing = Middleware(GZipMiddleware, minimum_size=LEAST_PACKED, compresslevel=3)
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard), packing])


async def stop_run(view: View, request: Request) -> Response:
    """Stop a run, if that is allowed and one of the view's own pages asks."""
    origin = request.headers.get("origin", "")
    own = origin == f"{request.url.scheme}://{request.headers.get('host', '')}"
    token = request.headers.get("x-afarm-token", "")
    if not view.token:
        return JSONResponse({"problem": "this view only reads: afarm view --allow-stop"}, status_code=403)
    if not own or not secrets.compare_digest(token.encode(), view.token.encode()):
        return JSONResponse({"problem": "a run is stopped from the view's own page alone"}, status_code=403)
    try:
        return JSONResponse({"done": stop(view.run(request.path_params["run"]))})
    except AfarmError as error:
        return JSONResponse({"problem": str(error)}, status_code=409)


def refusal(request: Request, hosts: Collection[str]) -> str:
    """Say why a request is not answered, for another host or from a page of another site; empty if it is."""
    try:
        named = request.headers.get("host", "").lower()
        host, port = (parts := urlsplit(f"//{named}")).hostname or "", parts.port
        if host not in hosts:
            ipaddress.ip_address(host)
        if named.removeprefix(f"[{host}]" if ":" in host else host) not in ("", f":{port}"):  # [::1].example
            raise ValueError(named)
    except ValueError:
        return "This view answers under its own address alone. Under another name: afarm view --allow-host NAME"
    foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if foreign and request.url.path.startswith(("/data/", "/stop/")):
        return "Data are for the view's own pages."
    return ""


def encode(value: Any) -> bytes:
    """Write data as JSON: control characters of texts shown as text, what is not finite as null."""
    return json.dumps(_show_controls(value), ensure_ascii=False, separators=(",", ":"), default=str).encode(
        "utf-8", "replace"
    )


def _show_controls(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {visible(str(name)): _show_controls(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_show_controls(one) for one in value]
    return value


def _tagged(request: Request, content: bytes, kind: str) -> Response:
    """An answer with a mark of its content: who has it already is not sent it again."""
    mark = f'"{hashlib.blake2b(content, digest_size=10).hexdigest()}"'
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers={"etag": mark})
    return Response(content, headers={"etag": mark}, media_type=f"{kind}; charset=utf-8")


def _document(path: Path | None) -> Response:
    """A file of an output directory, whose scripts reach nothing of the view."""
    if path is None or islink(path) or not isfile(path):
        return PlainTextResponse("no such file", status_code=404)
    try:
        content = path.read_bytes()
    except OSError as error:
        return PlainTextResponse(f"it cannot be read: {error.strerror}", status_code=403)
    kind = SHOWN_FILES.get(path.suffix, "text/plain")
    headers = {"content-security-policy": DOCUMENT_POLICY}
    return Response(content, headers=headers, media_type=f"{kind}; charset=utf-8")
