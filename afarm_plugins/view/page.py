"""The pages of the view: one shell, in which scripts of its own show what the data say.

Nothing is fetched elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined

from afarm.report import visible

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The policy of pages: they load and run files of the view alone. Plotly sets styles inline."""

PAGES: Mapping[str, tuple[str, str]] = {
    "runs": ("index.html", "Runs"),
    "artifacts": ("artifacts.html", "Artifacts"),
    "ledger": ("ledger.html", "Ledger"),
    "boards": ("boards.html", "Boards and studies"),
    "costs": ("costs.html", "Costs and plans"),
    "annotators": ("annotators.html", "Annotators and drift"),
}
"""The pages in the navigation: their files and headings."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "runs": ("runs",),
    "run": ("charts", "run"),
    "outputs": ("diff", "outputs"),
    "compare": ("charts", "diff", "compare"),
    "artifacts": ("artifacts",),
    "ledger": ("ledger",),
    "boards": ("charts", "study_plots", "boards"),
    "costs": ("charts", "costs"),
    "annotators": ("charts", "annotators"),
}
"""The scripts of each kind of page, after the one that all have."""

STATIC: Mapping[str, str] = {
    **{
        f"{name}.js": "afarm_plugins.view"
        for name in ("elements", *(name for needed in NEEDS.values() for name in needed))
    },
    "view.css": "afarm_plugins.view",
    "page.css": "afarm.report",
    "charts.js": "afarm.report",
    "study_plots.js": "afarm.report",
}
"""Files that pages load, and their packages."""


def render_shell(page: str, title: str, *, root: str = "", run: str = "", token: str = "", static: bool = False) -> str:
    """Render a page's shell; `root` leads to the view's root, with `token` it may stop runs."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_show_controls
    )
    return environment.from_string(_read("afarm_plugins.view", "page.html.jinja")).render(
        page=page,
        title=title,
        root=root,
        run=run,
        token=token,
        static=static,
        scripts=("elements", *NEEDS[page]),
        pages=PAGES,
        policy=POLICY.replace("; frame-ancestors 'none'", ""),  # not for documents to say of themselves
    )


def _show_controls(value: object) -> object:
    return visible(value) if type(value) is str else value


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return a file of pages and its type; None if there is none. plotly.js is the Python package's."""
    if name == "plotly.js":
        from afarm.report import plotly_script

        script = plotly_script()
        return None if script is None else (script.encode("utf-8"), "text/javascript")
    if name not in STATIC:
        return None
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return _read(STATIC[name], name).encode("utf-8"), kind


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
