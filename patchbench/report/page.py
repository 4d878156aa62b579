"""One self-contained HTML page: verdicts, figures that can be hovered, tables, no network.

Everything that comes from a model, a task or a user is escaped, in the text by the template and in
the figures' data here; a content security policy forbids the page to load anything.

Use:

    html = render_page("a title", blocks=[Block("Effects", figures=[figure], tables=[table])])
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from importlib import resources
from typing import TYPE_CHECKING, Any

from patchbench import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from patchbench.results import Result

# More verdicts are folded away, with a count of each.
_VERDICTS = 4
_WORD = re.compile(r"[^\W\d]")


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table that can be sorted by a click.

    Attributes:
        header: names of the columns.
        rows: as many texts each.
        title: above it.
        closed: whether it is folded away at first.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    closed: bool = False

    @property
    def words(self) -> list[bool]:
        """Which columns have words, to stand at the left, and not numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [any(_WORD.match(cell) for cell in column) for column in columns]


@dataclass(frozen=True)
class Block:
    """A section of a page; `code` is set as it is, and so is what can be unfolded by its name."""

    heading: str
    lines: Sequence[str] = ()
    figures: "Sequence[go.Figure]" = ()
    tables: Sequence[PageTable] = ()
    code: Sequence[str] = ()
    folded: Sequence[tuple[str, str]] = ()


def render_page(
    title: str,
    *,
    blocks: Sequence[Block],
    results: "Mapping[str, Result]",
    facts: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """Return the page.

    Args:
        title: of the page.
        blocks: its sections.
        results: whose verdicts stand on top; named if there are several.
        facts: names and texts below them.
        warnings: what must be known before anything is compared.
        wide: whether it takes a wide window's whole width, for a table of many columns.
    """
    import jinja2

    numbered, shown = {}, []
    for block in blocks:
        figures = []
        for figure in block.figures:
            name = f"figure-{len(numbered)}"
            numbered[name] = json.loads(figure.to_json() or "{}")
            drawn = numbered[name]["layout"]
            # Titles are written for plotly; the template escapes by itself.
            figures.append(
                {
                    "id": name,
                    "title": unescape(str(drawn["title"]["text"]).split("<br>")[0]),
                    "min_width": (drawn.get("meta") or {}).get("min_width"),
                }
            )
        shown.append({**vars(block), "figures": figures})
    verdicts = [
        {
            "label": str(result.verdict),
            "sentence": " ".join([result.verdict.sentence, result.verdict.generalises]).strip(),
            "mechanism": result.verdict.is_mechanism,
            "name": name if len(results) > 1 else "",
        }
        for name, result in results.items()
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_text("page.html.jinja")).render(
        title=title,
        verdicts=verdicts,
        counted=_counted(verdicts) if len(verdicts) > _VERDICTS else "",
        warnings=warnings,
        wide=wide,
        facts=facts,
        blocks=shown,
        figures=_json_in_html(numbered),
        has_figures=bool(numbered),
        plotly=_plotly() if numbered else "",
        script=_text("page.js"),
        version=__version__,
    )


def _counted(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return "10 verdicts: 6 no verdict, 4 not solved"."""
    counts = Counter(verdict["label"] for verdict in verdicts).most_common()
    return f"{len(verdicts)} verdicts: " + ", ".join(f"{count} {what}" for what, count in counts)


def _text(name: str) -> str:
    return resources.files("patchbench.report").joinpath(name).read_text(encoding="utf-8")


def _json_in_html(content: Any) -> str:
    """Return JSON that cannot end the script element that it stands in."""
    return json.dumps(content).replace("<", "\\u003c")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")
