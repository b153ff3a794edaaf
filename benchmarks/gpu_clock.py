"""Time, memory and rates of a GPU; the same on the CPU, for a trial without one."""

import shutil
import subprocess
import time
from statistics import median

import torch
from timing import rounded

WAIT = 5_000_000  # cycles, about 2.5 ms; with half of one, launches showed in the times
STATE = ("clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")


class OnGPU:
    """CUDA events. Before the first, the GPU is kept busy: the host runs ahead, as it does in training."""

    device = "cuda"

    def __init__(self):
        L2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 50 * 2**20
        self.calls = self.late = 0
        self.more_than_L2 = torch.empty(4 * L2, dtype=torch.uint8, device="cuda")

    def passes(self, forward, backward):
        """Seconds of forward, of backward, and of both, one after the other."""
        self.more_than_L2.zero_()  # what the cache holds is gone
        torch.cuda._sleep(WAIT)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        memory = forward()[1]
        marks[1].record()
        backward(memory)
        marks[2].record()
        self.calls += 1
        self.late += marks[0].query()  # the GPU has begun, so launches may be in the times
        marks[2].synchronize()
        return tuple(marks[a].elapsed_time(marks[b]) / 1e3 for a, b in ((0, 1), (1, 2), (0, 2)))

    def peaks(self, forward, backward):
        """The most bytes held above what was held before: by forward, and by both."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = forward()
        torch.cuda.synchronize()
        of_forward = torch.cuda.max_memory_allocated() - before
        found = found, backward(found[1])
        torch.cuda.synchronize()
        return {"forward": of_forward, "both": torch.cuda.max_memory_allocated() - before}

    def forget(self):
        torch.cuda.empty_cache()

    def about(self):
        """The GPU, for the record."""
        of = torch.cuda.get_device_properties(0)
        return {
            "name": of.name,
            "driver": _asked("driver_version"),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "memory": f"{of.total_memory / 2**30:.0f} GiB",
            "capability": f"{of.major}.{of.minor}",
            "processors": of.multi_processor_count,
        }

    def state(self):
        """Clocks, heat and power, and why the clocks are not higher (a bit mask; 0 is no reason, 1 is idleness)."""
        return {name: _asked(name) for name in STATE}


class OnCPU:
    """The clock on the wall. Its figures mean nothing; it is there for trials."""

    device = "cpu"
    calls = late = 0

    def passes(self, forward, backward):
        times = [time.perf_counter()]
        memory = forward()[1]
        times.append(time.perf_counter())
        backward(memory)
        times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1], times[2] - times[0]

    def peaks(self, forward, backward):
        backward(forward()[1])
        return {}

    def forget(self):
        pass

    def about(self):
        return {"name": "none: a trial on the CPU"}

    def state(self):
        return {}


def rates(clock, dtypes, n):
    """FLOP/s of a large product in each dtype, and bytes/s of a copy, read and written: what bounds everything else."""

    def seconds(call):
        return median(clock.passes(lambda: (None, None), lambda _: call())[1] for _ in range(7))

    found = {}
    for dtype in dtypes:
        A, B = (torch.randn(n, n, device=clock.device, dtype=torch.float32).to(dtype) for _ in "AB")
        A @ B
        found[str(dtype).removeprefix("torch.")] = rounded(2 * n**3 / seconds(lambda A=A, B=B: A @ B))
    source = torch.empty(n * n * 4, dtype=torch.float32, device=clock.device)
    target = torch.empty_like(source)
    target.copy_(source)
    return {"matrix": found, "copy": rounded(2 * 4 * source.numel() / seconds(lambda: target.copy_(source)))}


def _asked(what):
    """What nvidia-smi says of the first GPU."""
    if not (command := shutil.which("nvidia-smi")):
        return "unknown"
    asked = [command, f"--query-gpu={what}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"
