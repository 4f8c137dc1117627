"""The two children of a run: a producer and a consumer, in the order of the pipeline.

    workload -> producer -> ring -> batcher -> mode -> recorder -> Parquet

The parent starts each with `spawn` and talks to it through a pipe (`messages`). A child ends on an EXIT, after a
FAILED, or with the parent (`lifeline`). Between two jobs it waits. It ignores Ctrl-C and forwards SIGTERM and SIGHUP
to the parent, which ends the run in order.

The parent imports this module, so it imports no compiler. A child imports what it needs when it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from launchopt.devices.cuda.errors import GpuErrors
from launchopt.errors import ArenaMemoryError, GpuError, Interrupted, LaunchoptError
from launchopt.plugins.found import described
from launchopt.producing.production import RunKind
from launchopt.timing.nvtx_ranges import is_profiled
from runner.importing import uncollected
from runner.worker.messages import Failure, Order, OrderKind, Reply, ReplyKind

if TYPE_CHECKING:
    from launchopt.recording.manifest import Manifest
    from runner.plan.job import Job

RUNS = (OrderKind.WARM_UP, OrderKind.AUDIT, OrderKind.RUN)
_CORES = os.sched_getaffinity(0)


def _guarded(pipe: Connection, work: Callable[[], None]) -> None:
    """Run the work of a child. An error is sent to the parent as FAILED, and gives this process its exit code."""
    _leave_signals_to_parent()
    try:
        work()
        _leave(0)
    except SystemExit as ended:  # of _exit_unless_done, whose job is closed now
        _leave(int(ended.code or 0))
    except Interrupted:
        os._exit(0)
    except (GpuError, ArenaMemoryError) as error:
        _send_failure(pipe, Failure(_text(error, str(error)), error.exit_code, ""))
        os._exit(error.exit_code)  # a normal exit would free GPU memory, which may fail again
    except LaunchoptError as error:
        _fail(pipe, Failure(_text(error, str(error)), error.exit_code, ""))
    except MemoryError:
        _fail(pipe, Failure("out of main memory", 1, ""))
    except Exception as error:
        _fail(pipe, Failure(_text(error, described(error)), 1, traceback.format_exc()))


def _text(error: BaseException, message: str) -> str:
    """Return the message with the notes of the error, which say which mode it concerns."""
    return "; ".join([message, *getattr(error, "__notes__", ())])


def _leave(code: int) -> None:
    """End this process as it is: its results are saved. Python's own end takes time, and a library can abort in it.

    A profiler saves its records in that end.
    """
    if not is_profiled():
        os._exit(code)
    raise SystemExit(code)


def _fail(pipe: Connection, failure: Failure) -> None:
    _send_failure(pipe, failure)
    _leave(failure.exit_code)


def _send_failure(pipe: Connection, failure: Failure) -> None:
    with contextlib.suppress(OSError):
        pipe.send(Reply(ReplyKind.FAILED, failure))


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C, and forward SIGTERM and SIGHUP to the parent, which ends the run.

    A terminal sends each of them to every process of the run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def forward(number: int, frame: object) -> None:
        if os.getppid() == parent:  # else the parent has ended: its successor is no part of the run
            os.kill(parent, number)

    forwarded = (signal.SIGTERM, signal.SIGHUP)
    for each in forwarded:
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(each, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)  # the parent blocked them before it started this process


def producer_main(pipe: Connection) -> None:
    """Produce for jobs until EXIT."""
    _guarded(pipe, lambda: _jobs(pipe, "runner.worker.producer", _produce))


def consumer_main(pipe: Connection) -> None:
    """Consume for jobs until EXIT."""
    _guarded(pipe, lambda: _jobs(pipe, "runner.worker.consumer", _consume))


def _jobs(pipe: Connection, module: str, work: Callable[[Job, Connection], Manifest | None]) -> None:
    """Do the work of every job. `module` and Numba load first, while the parent prepares the job."""
    with uncollected():
        import_module(module)
        from launchopt.native import load_numba

        load_numba()
    while (order := _order(pipe)).job is not None:
        pipe.send(Reply(ReplyKind.IDLE, work(order.job, pipe)))


def _order(pipe: Connection) -> Order:
    order: Order = pipe.recv()
    return order


def _produce(job: Job, pipe: Connection) -> None:
    """Push the commands of every run, until DONE."""
    from runner.worker.producer import open_producer

    with open_producer(job) as producer:
        pipe.send(Reply(ReplyKind.READY))
        while (order := _order(pipe)).kind in RUNS:
            pipe.send(Reply(ReplyKind.PRODUCED, producer.timed(job.arms[order.arm], RunKind(order.kind))))
            if order.kind is OrderKind.RUN:
                producer.prepare()
                pipe.send(Reply(ReplyKind.READY))
    _exit_unless_done(order.kind)


def _consume(job: Job, pipe: Connection) -> Manifest:
    """Batch and launch the commands of every run, and record and check those of every RUN, until DONE.

    Return what is known behind the last run.
    """
    from runner.worker.consumer import Consumer

    without_pandas()
    os.sched_setaffinity(0, _CORES if job.pin_cpu is None else {job.pin_cpu})
    with GpuErrors() as gpu, Consumer(job) as consumer:
        pipe.send(Reply(ReplyKind.READY, consumer.about()))
        while (order := _order(pipe)).kind in RUNS:
            which = f"repeat {order.repeat}" if order.kind is OrderKind.RUN else f"{order.kind} run"
            gpu.where = f"in {job.arms[order.arm].label}, {which}"
            consumer.arm(order.arm, RunKind(order.kind))
            pipe.send(Reply(ReplyKind.ARMED))
            consumer.consume()
            pipe.send(Reply(ReplyKind.CONSUMED))
            if order.kind is OrderKind.RUN:
                pipe.send(Reply(ReplyKind.RESULT, consumer.result(order.arm, order.repeat)))
        ended = consumer.ended() if order.kind is OrderKind.DONE else {}
    _exit_unless_done(order.kind)
    return ended


class _NoPandas:
    """A module finder that raises ModuleNotFoundError for pandas, and leaves all other modules to the next finder."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Hide pandas from pyarrow, unless pandas is loaded already. Call this before the first array.

    Otherwise pyarrow imports pandas with its first array. That takes longer than a small run, which needs no pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


def _exit_unless_done(kind: OrderKind) -> None:
    """End the process on an EXIT within a job, which the parent sends when the job failed elsewhere."""
    if kind is not OrderKind.DONE:
        raise SystemExit(0)
