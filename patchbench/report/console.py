"""The console that everything is printed on: at most 80 columns, and deaf to what names contain.

Use:

    make_console().print("[bold]a title[/]")
"""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from patchbench.common import printable

WIDTH = 80


class _Console(Console):
    """A console that acts on its own styles alone: a name may hold a terminal's commands."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console of at most `WIDTH` columns."""
    console = _Console(stderr=stderr, highlight=False)
    console.width = min(console.width, WIDTH)
    return console
