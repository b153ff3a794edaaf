"""``python -m attnbook diagnose module:function``: :func:`attnbook.diagnose.report.diagnose` from a shell.

Exit status: 0 where nothing is wrong, 1 where something is, 2 where the command cannot be understood.
"""

import argparse
import importlib
import operator
import sys

from attnbook.diagnose.calling import LIBRARIES
from attnbook.diagnose.report import DTYPES, diagnose


def main():
    """Run the command with the arguments of the shell; the exit status. From here on only the report goes to stdout."""
    options = _parser().parse_args()
    out, sys.stdout = sys.stdout, sys.stderr  # for good: a function that takes too long is left behind, and may print
    try:
        fn = load(options.target)
        report = diagnose(fn, library=options.library, dtype=options.dtype, limit=options.limit, seed=options.seed)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"python -m attnbook: {error}", file=sys.stderr)
        return 2
    print(report.as_json() if options.json else report, file=out, flush=True)
    return 0 if report.ok else 1


def load(target):
    """What ``module:function`` names; a pair for ``module:forward,backward``."""
    module, _, names = target.partition(":")
    if not module or not names:
        raise ValueError(f"expected module:function, got {target!r}")
    try:
        home = importlib.import_module(module)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported; a script may exit
        raise ImportError(f"{module} could not be imported: {type(error).__name__}: {error}") from error
    found = tuple(operator.attrgetter(name.strip())(home) for name in names.split(","))
    return found if len(found) > 1 else found[0]


def _parser():
    parser = argparse.ArgumentParser(prog="python -m attnbook", description="The gradients of attention.")
    command = parser.add_subparsers(required=True, metavar="diagnose").add_parser(
        "diagnose",
        help="say whether an attention with a backward is right, and which known mistake it makes if not",
        description="Say whether an attention with a backward is right, and which known mistake it makes if not.",
        epilog="Exit status: 0 nothing is wrong, 1 something is, 2 the command cannot be understood.",
    )
    command.add_argument(
        "target",
        metavar="module:function",
        help="fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV); module:forward,backward for a pair; with torch also "
        "fn(Q, K, V, **options) -> O, whose backward is autograd's",
    )
    command.add_argument("--library", choices=LIBRARIES, default="numpy", help="whose arrays it is given")
    command.add_argument("--dtype", choices=DTYPES, default="float64", help="of these arrays")
    command.add_argument("--limit", type=float, default=30.0, metavar="SECONDS", help="for each case, 30 by default")
    command.add_argument("--seed", type=int, default=0, help="other numbers and sizes for another seed")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
