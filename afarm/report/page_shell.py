"""The shell of afarm's pages: one file that fetches nothing and runs only the scripts it names.

The outputs of models are hostile text: templates escape every value, and a security policy names scripts by hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from afarm.report.charts import pack
from afarm.storage.text import visible


def render_page(name: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """Render the template `{name}.html.jinja`. A value that it needs and is not in `values` is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters.update(filters or {})
    return environment.from_string(_file(f"{name}.html.jinja")).render(style=_file("page.css"), **values)


def _shown(value: Any) -> Any:
    """Show control characters of a text as text; what is markup already is the page's own."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def scripts(name: str, plotly: str | None) -> dict[str, Any]:
    """Pack the scripts of a template with charts by `{name}.js`; `plotly` is the source of plotly.js."""
    script = _file(f"{name}.js") + _file("plotly.js")
    return {
        "script": script,
        "plotly": pack(plotly) if plotly else None,
        "script_hashes": [_csp_hash(source) for source in (script, plotly) if source],
    }


def _file(name: str) -> str:
    return resources.files("afarm.report").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(source: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii") + "'"
