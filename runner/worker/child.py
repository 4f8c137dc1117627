"""The two children of a run: a producer and a consumer, in the order of the pipeline.

    workload -> producer -> ring -> batcher -> mode -> recorder -> Parquet

Each is started with `spawn`, talks to the parent through a pipe (a name and a value a message) and ends when told
"exit", when the parent is gone, or with an ("error", text, exit code). Between two jobs it waits. It ignores Ctrl-C and
passes SIGTERM and SIGHUP on to the parent: what reaches the whole process group, or one child, ends the run in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import numpy as np

from launchopt.devices.cuda.errors import GpuErrors
from launchopt.errors import ArenaMemoryError, GpuError, Interrupted, LaunchoptError
from launchopt.producing.blocks import Production, drive, produce
from launchopt.producing.driver import Driver
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter
from launchopt.timing.nvtx_ranges import is_profiled
from launchopt.workloads.chain import DUE_NS, ChainStream
from launchopt.workloads.stream import Block
from runner.plan.job import Arm, Job

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
REHEARSAL_COMMANDS = 64  # enough to load every compiled loop of the path
_CORES = os.sched_getaffinity(0)
READY_BLOCKS = 256  # blocks made before the clock starts (64 MiB of records)


def _guarded(pipe: Connection, bound: bool, work: Callable[[], None]) -> None:
    """Run a child's work; whatever goes wrong becomes a message to the parent and an exit code."""
    _leave_signals_to_parent()
    if bound:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        work()
        if not is_profiled():
            os._exit(0)  # everything is put away: the interpreter's own tidying up would only take time
    except Interrupted:
        os._exit(0)
    except (GpuError, ArenaMemoryError) as error:
        _send_error(pipe, str(error), error.exit_code, "")
        os._exit(error.exit_code)  # what is dropped would be given back to the GPU, which may refuse that, too
    except LaunchoptError as error:
        _report(pipe, str(error), error.exit_code, "")
    except MemoryError:
        _report(pipe, "out of main memory", 1, "")
    except Exception as error:
        _report(pipe, f"{type(error).__name__}: {error}", 1, traceback.format_exc())


def _report(pipe: Connection, text: str, exit_code: int, trace: str) -> None:
    _send_error(pipe, text, exit_code, trace)
    raise SystemExit(exit_code)


def _send_error(pipe: Connection, text: str, exit_code: int, trace: str) -> None:
    with contextlib.suppress(OSError):
        pipe.send(("error", (text, exit_code, trace)))


def _leave_signals_to_parent() -> None:
    """They reach the whole process group; the parent decides what they mean."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    passed_on = (signal.SIGTERM, signal.SIGHUP)
    for each in passed_on:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as under nohup
            signal.signal(each, lambda number, frame: os.kill(os.getppid(), number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)  # held back since before it was started


def _die_with_parent() -> None:
    """Where the kernel does not see to it, and in case the parent went before it was told to."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def producer_main(pipe: Connection, bound: bool) -> None:
    """Jobs until "exit"; `bound`: dies with the thread that started it, whatever it is doing."""
    _guarded(pipe, bound, lambda: _jobs(pipe, _produce))


def consumer_main(pipe: Connection, bound: bool) -> None:
    """Jobs until "exit"; `bound`: dies with the thread that started it, whatever it is doing."""
    _guarded(pipe, bound, lambda: _jobs(pipe, _consume))


def _jobs(pipe: Connection, work: Callable[[Job, Connection], None]) -> None:
    while (message := pipe.recv())[0] == "job":
        work(message[1], pipe)
        pipe.send(("idle", None))


def _produce(job: Job, pipe: Connection) -> None:
    """Push the stream once for every "run", its first commands for a "rehearse", until "done"."""
    with Ring.attach(job.ring_name, job.capacity) as ring:
        ring.await_room(0)  # loads its loop: a rehearsal does not fill the ring, a run may
        if isinstance(job.stream, ChainStream):
            _drive(job, job.stream, ring, pipe)
            return
        waiter = Waiter(ring.await_room, job.spin_us, job.sleep_us)
        blocks = job.stream.blocks()
        ready = list(islice(blocks, READY_BLOCKS))
        pipe.send(("ready", None))
        while (message := pipe.recv()[0]) in ("run", "rehearse"):
            if message == "rehearse":
                records = ready[0].records[:REHEARSAL_COMMANDS].copy()
                due_ns = None if ready[0].due_ns is None else np.zeros(len(records), np.int64)
                first = Block(records, due_ns)
                pipe.send(("produced", produce([first], ring, waiter)))
                continue
            pipe.send(("produced", produce(chain(ready, blocks), ring, waiter)))
            blocks = job.stream.blocks()
            ready = list(islice(blocks, READY_BLOCKS))
            pipe.send(("ready", None))
        _exit_unless_done(message)


def _drive(job: Job, stream: ChainStream, ring: Ring, pipe: Connection) -> None:
    """Issue the steps of every request for every "run" of an arm, some for a "rehearse", until "done"."""
    open_loop = bool(stream.table[:, DUE_NS].any())
    with Ring.attach(job.back_name, job.back_capacity) as back:

        def once(arm: Arm, rehearsal: bool) -> Production:
            schedule = replace(job.schedule, ahead=arm.ahead)
            driver = Driver(stream, schedule, job.spin_us, job.sleep_us, rehearsal)
            return drive(driver, ring, back, open_loop)

        pipe.send(("ready", None))
        while (message := pipe.recv())[0] in ("run", "rehearse"):
            pipe.send(("produced", once(job.arms[message[1]], message[0] == "rehearse")))
            if message[0] == "run":
                pipe.send(("ready", None))
        _exit_unless_done(message[0])


def _consume(job: Job, pipe: Connection) -> None:
    """Batch, launch, record and check the stream for every "run"; a "rehearse" keeps nothing; until "done"."""
    from runner.worker.consumer import Consumer

    without_pandas()
    os.sched_setaffinity(0, _CORES if job.pin_cpu is None else {job.pin_cpu})
    with GpuErrors() as gpu, Consumer(job) as consumer:
        pipe.send(("ready", consumer.about()))
        while (message := pipe.recv())[0] in ("run", "rehearse"):
            which = f"repeat {message[2]}" if message[0] == "run" else "rehearsal"
            gpu.where = f"in {job.arms[message[1]].mode}, {which}"
            consumer.arm(message[1], rehearsal=message[0] == "rehearse")
            pipe.send(("armed", None))
            consumer.consume()
            pipe.send(("consumed", None))
            if message[0] == "run":
                pipe.send(("result", consumer.result(message[1], message[2])))
    _exit_unless_done(message[0])


class _NoPandas:
    """A finder that knows one module, pandas, and says that it is not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Make pyarrow believe that pandas is not installed, unless it is loaded. Call this before the first array.

    Else pyarrow imports pandas with its first array, which takes longer than a small run. A run makes no pandas object.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


def _exit_unless_done(message: str) -> None:
    """In the middle of a job "exit" means: the job went wrong elsewhere, end now."""
    if message != "done":
        raise SystemExit(0)
