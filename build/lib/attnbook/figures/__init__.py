"""Figures of the book: SVG, the same on every machine, readable in light and dark, with its message in words.

``matrices``, ``flow`` and ``visits`` draw by themselves; ``plot`` imports matplotlib when it is called.
"""

from attnbook.figures.flow import flow
from attnbook.figures.matrices import matrices
from attnbook.figures.plots import plot
from attnbook.figures.svg import Figure
from attnbook.figures.visits import visits

__all__ = ["Figure", "flow", "matrices", "plot", "visits"]
