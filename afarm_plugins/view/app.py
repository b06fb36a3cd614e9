"""The web application: pages, their data, and the files that they load.

All of it is read, but for one request that stops a run. Names in addresses are looked up among what is there, never
joined to a path. A request must name this machine as its host, so that no page of another site reaches the view through
a name of its own (DNS rebinding).
"""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from os.path import isfile, islink
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

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
from afarm_plugins.view.run_table import describe_row
from afarm_plugins.view.sources import SeenRun, Sources
from afarm_plugins.view.stopping import stop
from afarm_plugins.view.stores import SHOWN_FILES, artifact_rows, document_rows, documents, ledger_accounts
from afarm_plugins.view.variants import own_settings

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
        """All about one run but its outputs."""
        return describe_details(self.run(run_id))

    def outputs(self, run_id: str, query: Mapping[str, str]) -> Any:
        """The pairs of a run that a query finds, those from `from` on, at most `count`."""
        read = Query.read(query)
        other = self.run(read.flips) if read.flips else None
        start, count = (int(value) if (value := query.get(n, "")).isdecimal() else 0 for n in ("from", "count"))
        run = self.run(run_id)
        return {**self.pairs.listed(run, read, start, count or 100, other), "commands": list_part_commands(run)}

    def pair(self, run_id: str, number: int) -> Any:
        """All about one pair of a run."""
        run = self.run(run_id)
        return self.pairs.pair(run, number, self.find_ledger(run.output_dir))

    def comparison(self, run_ids: Sequence[str]) -> Any:
        """Several runs beside each other."""
        chosen = list(dict.fromkeys(run_ids))
        if not 2 <= len(chosen) <= MOST_RUNS:
            raise DataError(f"compare 2 to {MOST_RUNS} runs, not {len(chosen)}")
        return compare_runs([self.run(run_id) for run_id in chosen], self.pairs)

    def ledgers(self) -> Any:
        """The accounts of each ledger."""
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
        """The artifacts of each output directory."""
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
        """Quality and cost of all runs, and what a plan is made from."""
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
        """The boards and studies that there are."""
        return document_rows(self.sources.output_dirs)


def view_app(view: View, hosts: Collection[str] = ()) -> ASGIApp:
    """Make the application. `hosts` are further names under which it may be asked for, beside addresses."""

    def data(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return _json(request, answer(request))
            except (AfarmError, OSError) as error:  # files that go meanwhile, or that may not be read
                return JSONResponse({"problem": visible(str(error))}, status_code=404)

        return respond

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

    async def stop_run(request: Request) -> Response:
        return _stop(view, request)

    pages = [Route(f"/{file}", page(name, heading)) for name, (file, heading) in PAGES.items()]
    routes = [
        Route("/", page("runs", "Runs")),
        *pages,
        Route("/compare.html", page("compare", "Runs compared")),
        Route("/run/{run}.html", page("run", "run")),
        Route("/outputs/{run}.html", page("outputs", "outputs")),
        Route("/static/{name}", static),
        Route("/data/runs.json", data(lambda request: view.table())),
        Route("/data/run/{run}.json", data(lambda request: view.details(request.path_params["run"]))),
        Route(
            "/data/outputs/{run}.json",
            data(lambda request: view.outputs(request.path_params["run"], request.query_params)),
        ),
        Route(
            "/data/pair/{run}/{number:int}.json",
            data(lambda request: view.pair(request.path_params["run"], request.path_params["number"])),
        ),
        Route("/data/compare.json", data(lambda request: view.comparison(request.query_params.getlist("run")))),
        Route("/data/ledger.json", data(lambda request: view.ledgers())),
        Route("/data/artifacts.json", data(lambda request: view.artifacts())),
        Route("/data/costs.json", data(lambda request: view.costs())),
        Route("/data/annotators.json", data(lambda request: view.annotators())),
        Route(
            "/data/annotators/{run}/{use}.json",
            data(lambda request: view.list_annotators(request.path_params["run"], request.path_params["use"])),
        ),
        Route("/data/boards.json", data(lambda request: view.documents())),
        Route("/document/{address:path}", document),
        Route("/report/{run}.html", report),
        Route("/stop/{run}", stop_run, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), hosts)


class Guard:
    """Refuses requests for another host or from pages of other sites; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]):
        self._app = app
        self._hosts = {"localhost", *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if problem := self._refusal(scope["path"], given):
            await PlainTextResponse(problem, status_code=403)(scope, receive, sent)
        else:
            await self._app(scope, receive, sent)

    def _refusal(self, path: str, given: Mapping[str, str]) -> str:
        host = parse_host(given.get("host", ""))
        if host not in self._hosts and not _is_address(host):
            return "This view answers under its own address alone. Under another name: afarm view --allow-host NAME"
        foreign = given.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if foreign and path.startswith(("/data/", "/stop/")):
            return "Data are for the view's own pages."
        return ""


def parse_host(header: str) -> str:
    """Return the host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _stop(view: View, request: Request) -> Response:
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


def _json(request: Request, value: Any) -> Response:
    return _tagged(request, encode(value), "application/json")


@lru_cache(maxsize=16)
def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 3, mtime=0)


def _tagged(request: Request, content: bytes, kind: str) -> Response:
    """An answer with a mark of its content: who has it already is not sent it again."""
    mark = f'"{hashlib.blake2b(content, digest_size=10).hexdigest()}"'
    headers = {"etag": mark, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    if len(content) > LEAST_PACKED and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers = _packed(content), {**headers, "content-encoding": "gzip"}
    return Response(content, headers=headers, media_type=f"{kind}; charset=utf-8")


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
