"""What a target of the command line names: ``module:function``, ``file.py:function``, a class, a pair.

Chapter: :doc:`/chapters/in_the_wild`.
"""

import difflib
import importlib
import importlib.util
import inspect
import operator
import os
import sys
from pathlib import Path


def load(target):
    """The function that ``module:function`` or ``path/file.py:function`` names; a pair for ``…:forward,backward``.

    A class stands for an instance of it, a ``torch.autograd.Function`` for its ``apply``.

    Raises
    ------
    ValueError
        The target is not of this form.
    ImportError, AttributeError
        There is no such module or file, it cannot be imported, or has no such name.
    TypeError
        The name is a class that cannot be made without arguments.
    """
    home, _, names = target.rpartition(":")
    if not home or not names:
        raise ValueError(f"expected module:function, got {target!r}{_what_is_in(target)}")
    try:
        module = _imported(home)
    except ImportError as error:
        if not home.endswith(".py") or "attempted relative import" not in str(error):
            raise
        raise ImportError(f"{error}: {_as_module(home, names)}") from error
    found = tuple(_called(_named(module, name.strip()), name.strip()) for name in names.split(","))
    return found if len(found) > 1 else found[0]


def _imported(home):
    """The module of this name or file, whatever it does when it is imported."""
    path = Path(home)
    try:
        if home.endswith(".py") or os.sep in home:
            return _of_file(path)
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it, also where the console script runs
        return importlib.import_module(home)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:  # a script may exit
        raise ImportError(f"{home} could not be imported: {type(error).__name__}: {error}") from error


def _of_file(path):
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))  # its neighbors are imported as when it is run
    name = path.stem if path.stem not in sys.modules else f"attnbook_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _as_module(home, names):
    """How to name a file of a package."""
    *above, last = Path(os.path.relpath(home)).with_suffix("").parts
    if ".." in above:
        return f"go to the folder above its package, and name it as a module, as in package.{last}:{names}"
    return f"name it as a module, {'.'.join([*above, last])}:{names}"


def _named(module, name):
    try:
        return operator.attrgetter(name)(module)
    except AttributeError as error:
        like = difflib.get_close_matches(name, _functions(module), cutoff=0.5) or _functions(module)
        more = f"; it has {', '.join(like[:5])}" if like else ""
        raise AttributeError(f"{error}{more}") from None


def _functions(module):
    """The names that stand for functions or classes of its own."""
    return [
        name for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]  # fmt: skip


def _what_is_in(target):
    """A hint for a target without a function: what the file or module has."""
    if not target.endswith(".py"):
        return ""
    try:
        names = _functions(_imported(target))
    except ImportError:
        return ""
    return f": write {target}:{names[0]}" if len(names) == 1 else f": it has {', '.join(names)}" if names else ""


def _called(found, name):
    """What is to be called: for a class an instance of it, or torch's ``apply``."""
    if not inspect.isclass(found):
        return found
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(found, torch.autograd.Function):
        return found.apply
    try:
        return found()
    except Exception as error:
        raise TypeError(
            f"{name} is a class, and cannot be made without arguments ({type(error).__name__}: {error}): "
            f"make an instance in its module, and name that"
        ) from error
