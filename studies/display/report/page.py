"""A report as one HTML file that refers to nothing outside itself.

The page's content security policy allows exactly two scripts, by their digests: plotly's and this package's. What comes
from a database is escaped as text; were an escape ever missed, the browser would still not run it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tunebench import __version__
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.gather import ReportData
from tunebench.studies.display.report.style import Plot
from tunebench.studies.display.report.tables import overview_table
from tunebench.studies.display.report.view import Part, page_parts, study_view
from tunebench.studies.display.tables import eager_had
from tunebench.tuner.files import whole_file
from tunebench.tuner.problem import told_apart

_HERE = Path(__file__).parent


def render(report: ReportData) -> str:
    """Return the HTML of a report."""
    kernels = sorted({summary.row.kernel for summary in report.overview})
    problems = told_apart((summary.row.kernel, summary.row.problem) for summary in report.overview)
    in_full = {study.row.study_id for study in report.studies}
    return _page(
        title="tunebench report: " + (", ".join(kernels) if len(kernels) <= 4 else f"{len(kernels)} kernels"),
        introduction=f"{len(report.overview)} {'study' if len(report.overview) == 1 else 'studies'} from "
        f"{Path(report.database).name}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, tunebench {__version__}.",
        parts=page_parts(report),
        overview=overview_table(report.overview, problems, in_full),
        left_out=_left_out(report),
        eager=eager_had(summary.row.problem.options for summary in report.overview),
        views=[study_view(study) for study in report.studies],
    )


def render_figure(title: str, figure: Figure) -> str:
    """Return the HTML of a page with one plot."""
    return _page(title=title, introduction=figure.label, parts=(Part("plot", title, figures=(figure,)),))


def _page(**values: object) -> str:
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    environment.filters["plot_json"] = plot_json
    style, script, plotly = (
        (_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "plotly-cartesian.min.js")
    )
    return environment.get_template("page.html.jinja").render(
        {"overview": None, "views": [], **values},
        version=__version__,
        style=style,
        script=script,
        plotly=plotly,
        script_hashes=" ".join(f"'{_digest(text)}'" for text in (plotly, script)),
    )


def write(html: str, path: Path) -> None:
    """Write the file whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    with whole_file(path) as file:
        file.write(html.encode())


def plot_json(plot: Plot) -> str:
    """Return a plot as JSON that cannot end the script element it stands in."""
    compact = json.dumps(_rounded(plot), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # U+2028 and U+2029 need no escape in JSON.
    return compact.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _rounded(part: Any) -> Any:
    """Return a part of a plot with its numbers to seven digits, which are more than a picture shows."""
    if isinstance(part, dict):
        return {name: _rounded(one) for name, one in part.items()}
    if isinstance(part, list | tuple):
        return [_rounded(one) for one in part]
    return float(f"{part:.7g}") if isinstance(part, float) else part


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _left_out(report: ReportData) -> list[str]:
    """Return the sentences about what the report does not show, and how to see it."""
    texts = []
    if without := len(report.overview) - len(report.studies):
        texts.append(
            f"The {len(report.studies)} most recent studies have a section below; {without:,} others are in this table "
            "only."
        )
    if report.unlisted:
        texts.append(f"{report.unlisted:,} studies that are less recent are not in this table.")
    if report.older:
        numbers = ", ".join(str(row.study_id) for row in report.older[:12])
        more = ", …" if len(report.older) > 12 else ""
        texts.append(f"Older studies of the same problems are left out ({numbers}{more}).")
    return [*texts, "tunebench report --study NUMBER shows one."] if texts else []
