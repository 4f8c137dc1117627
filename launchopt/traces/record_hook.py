"""Record the processes of a program: `launchopt record` starts it with a copy of this file as its `sitecustomize`.

The program's interpreter may have no launchopt and be another Python, so this file imports the standard library alone,
and PyTorch once the program has imported it. Each process that imports PyTorch writes two files into the folder that
LAUNCHOPT_RECORD names: an execution trace, and a JSON object about it. A process that cannot write goes on unrecorded.

A step begins with a call of a module that no other module called, and lasts until the next step begins. The execution
trace makes operators slower. A trace of PyTorch's profiler, which has times, is therefore taken of the steps after the
recorded ones.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
from importlib.machinery import PathFinder
from typing import Any

VARIABLE = "LAUNCHOPT_RECORD"  # folder, skip, steps (0: all), bytes and 1 to profile, too, one a line
STARTED, WITHOUT_TORCH = "started", "without-torch"  # empty files in the folder: Python began; it found no PyTorch
TRACE, ABOUT, PROFILE = ".trace.json", ".about.json", ".profile.json.gz"  # ends of the names of files
WATCH_S = 0.1


class TorchFinder:
    """A finder of modules that begins a recording once PyTorch has been imported."""

    def __init__(self, folder: str, *limits: int) -> None:
        self.folder, self.limits = folder, limits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of PyTorch, with a loader that begins the recording; None for other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            mark(self.folder, WITHOUT_TORCH)
            return None
        load = spec.loader.exec_module

        def loaded(module: Any) -> None:
            load(module)
            with contextlib.suppress(Exception):
                ProcessRecording(module, self.folder, *self.limits)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


class ProcessRecording:
    """The recording of this process: all until its end, or `steps` steps behind the first `skip`."""

    def __init__(self, torch: Any, folder: str, skip: int, steps: int, most_bytes: int, is_profiled: int) -> None:
        self._torch, self._given = torch, (folder, skip, steps, most_bytes, is_profiled)
        self._skip, self._stop, self._most_bytes = skip, skip + steps if steps else None, most_bytes
        self._last = skip + steps * (1 + is_profiled) if steps else None
        self._profiler: Any = None
        name = os.path.join(folder, f"{time.time_ns():020d}-{os.getpid()}")  # noqa: PTH118 (Python 3.8 has no other)
        self._trace, self._file, self._profile = name + TRACE, name + ABOUT, name + PROFILE
        self._about = {"torch": torch.__version__, "device": "", "steps": None, "replays": 0, "is_full": False}
        self._about["is_displaced"] = False
        self._inner = threading.local()  # depth: number of module calls around the present one
        self._is_on, self._is_live = False, True  # live: false once it was closed, or left to the parent
        self._watch = threading.Event()
        self._hooks: list[Any] = []
        self._save()
        self._observer = torch.profiler.ExecutionTraceObserver().register_callback(self._trace)
        before_another(self._observer, self._give_way)
        if not (skip or steps):
            self._start()
        else:
            self._about["steps"] = 0
            hooks = torch.nn.modules.module
            self._hooks.append(hooks.register_module_forward_pre_hook(self._enter))
            self._hooks.append(hooks.register_module_forward_hook(self._leave, always_call=True))
        self._count_replays()
        atexit.register(self._close)
        self._close_in_worker()
        multiprocessing = sys.modules["multiprocessing.util"]
        multiprocessing.register_after_fork(self, ProcessRecording._close_in_worker)  # a worker forgets the line above
        os.register_at_fork(before=self._before_fork, after_in_parent=self._go_on, after_in_child=self._begin_anew)

    def _enter(self, module: Any, args: Any) -> None:
        """Begin a step, unless another module calls this one."""
        if self._torch.compiler.is_compiling():
            return
        depth = getattr(self._inner, "depth", 0)
        self._inner.depth = depth + 1
        if not depth and not self._is_capturing():
            with contextlib.suppress(Exception):  # the program goes on, whatever happens here
                self._begin_step()

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is captured: neither a step, nor a time at which to wait for the GPU."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _begin_step(self) -> None:
        begun = self._about["steps"]
        if begun == self._stop:
            self._pause()
        if begun == self._last:
            self._remove_hooks()
            self._end_profile()
            return
        self._about["steps"] = begun + 1
        if begun == self._skip:
            self._start()
        elif begun == self._stop:
            self._profiler = self._torch.profiler.profile(record_shapes=True)
            self._profiler.start()

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if not self._torch.compiler.is_compiling():
            self._inner.depth = max(0, getattr(self._inner, "depth", 0) - 1)

    def _end_profile(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            if self._torch.cuda.is_initialized():
                self._torch.cuda.synchronize()
            profiler.stop()
            profiler.export_chrome_trace(self._profile)

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _start(self) -> None:
        self._observer.start()
        self._is_on, self._watch = True, threading.Event()
        threading.Thread(target=self._watched, args=(self._watch,), name="launchopt-record", daemon=True).start()

    def _watched(self, is_over: threading.Event) -> None:
        """Stop the recording when its file is too large, or nobody waits for it any more."""
        while not is_over.wait(WATCH_S):
            try:
                self._about["is_full"] = os.stat(self._trace).st_size > self._most_bytes  # noqa: PTH116
            except OSError:
                self._pause()
            if self._about["is_full"]:
                self._pause()
                self._save()

    def _pause(self) -> None:
        if self._is_on:
            self._is_on = False
            self._observer.stop()
            self._watch.set()

    def _count_replays(self) -> None:
        """Count replays of CUDA graphs, whose operators are not in the trace."""
        graph, about = self._torch.cuda.CUDAGraph, self._about
        replay = graph.replay

        def counted(graph: Any) -> Any:
            about["replays"] += 1
            if about["replays"] == 1:
                self._save()
            return replay(graph)

        graph.replay = counted

    def _give_way(self) -> None:
        """End the recording before the program begins an execution trace of its own: PyTorch has one at a time."""
        if self._is_live:
            self._about["is_displaced"] = True
            self._remove_hooks()
            self._close()

    def _before_fork(self) -> None:
        self._was_on = self._is_on
        self._pause()

    def _go_on(self) -> None:
        if self._was_on:
            self._start()

    def _begin_anew(self) -> None:
        """Begin a recording of the forked process, and leave the file of its parent as it is."""
        if not self._is_live:
            return
        self._is_live = False
        with contextlib.suppress(Exception):
            let_go(self._trace)
            self._observer.unregister_callback()
            atexit.unregister(self._close)
            self._remove_hooks()
            ProcessRecording(self._torch, *self._given)

    def _close_in_worker(self) -> None:
        """Close at the end of a worker that was forked, also by a server, which ends without `atexit`."""
        from multiprocessing import util  # PyTorch has imported it

        util.Finalize(None, self._close, exitpriority=-100)

    def _close(self) -> None:
        if not self._is_live:
            return
        self._is_live = False
        with contextlib.suppress(Exception):
            self._end_profile()
        with contextlib.suppress(Exception):
            self._pause()
            self._observer.unregister_callback()
            cuda = self._torch.cuda
            if cuda.is_initialized():
                self._about["device"] = cuda.get_device_name()
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError), open(self._file, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(self._about, file)


def before_another(own: Any, give_way: Any) -> Any:
    """Call `give_way` before another execution trace than `own` begins. Return what ends this.

    Two in one process crash: PyTorch does not register the second one, and ends the first one in its place.
    """
    kind = type(own)
    register = kind.register_callback

    def registered(observer: Any, *given: Any, **named: Any) -> Any:
        if observer is not own:
            give_way()
        return register(observer, *given, **named)

    def undo() -> None:
        if kind.register_callback is registered:
            kind.register_callback = register

    kind.register_callback = registered
    return undo


def let_go(path: str) -> None:
    """Make what this forked process still buffers for its parent's file go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == path:  # noqa: PTH115
                os.dup2(nowhere, int(name))
    os.close(nowhere)


def mark(folder: str, name: str) -> None:
    """Make an empty file in the folder, unless the folder is gone."""
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY, 0o600))  # noqa: PTH118


def run_replaced(here: str) -> None:
    """Run the `sitecustomize` that the interpreter would have found without this one."""
    others = [each for each in sys.path if os.path.abspath(each) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    given = os.environ.get(VARIABLE, "").split("\n")
    if len(given) == 5:
        mark(given[0], STARTED)
        sys.meta_path.insert(0, TorchFinder(given[0], *map(int, given[1:])))
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    run_replaced(here)
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]  # noqa: PTH100
