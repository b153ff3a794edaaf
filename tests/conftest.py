"""The fixture ``xp``: one test, run on every array library. The rest is settings that keep runs alike, and a record."""

import importlib.util
import os
from pathlib import Path

import covers
import pytest
from built_site import address, browser, pages  # noqa: F401 (fixtures)
from covers import (  # noqa: F401 (pytest finds its hooks here)
    pytest_addoption,
    pytest_runtest_logreport,
    pytest_sessionfinish,
)
from hypothesis import settings
from libraries import LIBRARIES
from routes import ROUTES, taking

WITHOUT_TORCH = importlib.util.find_spec("torch") is None
if not WITHOUT_TORCH:
    import kernels  # noqa: F401 (before anything imports Triton)
    import torch

    torch.set_num_threads(1)  # the arrays are small, and the workers of a run are many
    COMPILED = Path(__file__).parents[1] / "_build" / f"compiled-by-torch-{torch.__version__}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(COMPILED))  # kept from run to run, shared by the workers
os.environ.setdefault("ATTNBOOK_NUM_THREADS", "2")  # else torch's, and nothing would run on several
settings.register_profile("same-every-run", derandomize=True, deadline=None, print_blob=True, max_examples=40)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=400)
settings.load_profile("same-every-run")  # for new examples: pytest --hypothesis-profile=explore


LONGEST = (
    "test_parallel_gloo",
    "test_grade",
    "test_ranks",
    "test_fused",
    "test_conventions",
    "test_attention",
    "test_diagnose",
    "test_torch_compile",
)
"""Files that take a worker the longest."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The longest files first: at the end of a run no worker is left alone with one."""
    covers.pytest_collection_modifyitems(config, items)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file that imports torch, where it is missing, is skipped, all in one line; a file with no test fails."""
    report = yield
    if WITHOUT_TORCH and report.failed and "No module named 'torch" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(Path(__file__)), 0, "Skipped: torch is not installed: what needs it is skipped")
    elif isinstance(collector, pytest.Module) and report.passed and not report.result:
        report.outcome, report.longrepr = "failed", "no test is in it"
    return report


@pytest.fixture(scope="session", params=LIBRARIES, ids=lambda c: c.name)
def xp(request):
    """An array library: ``xp.asarray(T)`` makes its arrays, ``xp.numpy(T)`` brings them back."""
    return request.param()


@pytest.fixture(params=ROUTES)
def route(request):
    """Every way through the package: a test that asks for it runs on each."""
    with taking(request.param):
        yield request.param


def pytest_runtest_setup(item):
    """Skip what needs a missing library."""
    for library in item.callspec.params.values() if hasattr(item, "callspec") else ():
        if hasattr(library, "missing") and (reason := library.missing()):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """What is missing is said in one line, and not in one for each place that needs it."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = ("tests", None, report.longrepr[2])
    return report
