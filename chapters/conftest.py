"""Kernels that talk over files: of workers that start theirs at one moment, two may be given the same port.

And that are forked from one process, which saves each of them its imports.
"""

import os
from itertools import count
from tempfile import TemporaryDirectory

import nbval.kernel
import warm_kernels
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner

FOLDER, NUMBERS = TemporaryDirectory(), count()  # a short path: that of a socket must have under 104 letters


def over_files(**given):
    return KernelManager(transport="ipc", connection_file=f"{FOLDER.name}/{next(NUMBERS)}.json", **given)


for library in ("OMP", "OPENBLAS"):  # the arrays are small: threads wait longer for each other than they work
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
if os.name == "posix":
    nbval.kernel.KernelManager = over_files
    local_provisioner.launch_kernel = warm_kernels.launch
