"""Figures of the book: SVG, the same on every machine, readable in light and dark, with its message in words.

``interactive`` gives a picture controls; ``visits`` is such a picture. ``plot`` imports matplotlib when it is called.
"""

from attnbook.book.figures.arrows import arrows
from attnbook.book.figures.flow import flow
from attnbook.book.figures.head_steps import head_steps
from attnbook.book.figures.input_paths import input_paths
from attnbook.book.figures.interactive import Control, State, interactive
from attnbook.book.figures.jacobian import jacobian
from attnbook.book.figures.loss_scales import loss_scales
from attnbook.book.figures.masked_gradients import masked_gradients
from attnbook.book.figures.matrices import matrices
from attnbook.book.figures.plots import plot
from attnbook.book.figures.programs import programs
from attnbook.book.figures.ring_steps import ring_steps
from attnbook.book.figures.score_shapes import Shape, score_shapes
from attnbook.book.figures.svg import Figure
from attnbook.book.figures.touches import touches
from attnbook.book.figures.visits import visits
from attnbook.book.figures.whole_head import whole_head

__all__ = [
    "Control",
    "Figure",
    "Shape",
    "State",
    "arrows",
    "flow",
    "head_steps",
    "input_paths",
    "interactive",
    "jacobian",
    "loss_scales",
    "masked_gradients",
    "matrices",
    "plot",
    "programs",
    "ring_steps",
    "score_shapes",
    "touches",
    "visits",
    "whole_head",
]
