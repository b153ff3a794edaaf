"""Figures of the book: SVG, the same on every machine, readable in light and dark, with its message in words.

``interactive`` gives a picture controls; ``visits`` is such a picture. ``plot`` imports matplotlib when it is called.
"""

from attnbook.figures.arrows import arrows
from attnbook.figures.flow import flow
from attnbook.figures.head_steps import head_steps
from attnbook.figures.input_paths import input_paths
from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.jacobian import jacobian
from attnbook.figures.loss_scales import loss_scales
from attnbook.figures.masked_gradients import masked_gradients
from attnbook.figures.matrices import matrices
from attnbook.figures.plots import plot
from attnbook.figures.programs import programs
from attnbook.figures.ring_steps import ring_steps
from attnbook.figures.score_shapes import Shape, score_shapes
from attnbook.figures.svg import Figure
from attnbook.figures.touches import touches
from attnbook.figures.visits import visits
from attnbook.figures.whole_head import whole_head

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
