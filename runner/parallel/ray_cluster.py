"""Tasks of Ray, one for each job: in a cluster that runs already, or in one that lives as long as the sweep.

Linux ends Ray's processes with the thread that started them. So the main thread starts them, before the launcher does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from launchopt.errors import ConfigError, one_line
from launchopt.scratch import scratch
from runner.ending.signals import signals
from runner.parallel.packages import MOST_TEXT, Package, failed, replaced

KEY = "hydra.launcher.ray"
ADDRESS = "RAY_ADDRESS"
POLL_S = 0.1
CONNECT_S = 5.0
ANSWER_S = 20.0  # patience with the address of a cluster; Ray's own is two minutes, and ends the process
STORE_BYTES = 78_643_200  # Ray's store of objects, which jobs do not use: the least
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
_RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # of a task: Ray's name for it in a node


class Ray(Package):
    """A task of Ray for each job."""

    module = "ray"

    def __init__(self, launcher: DictConfig) -> None:
        super().__init__(launcher)
        self._address = launcher.ray.init.get("address") or os.environ.get(ADDRESS) or "local"
        remote = launcher.ray.remote
        self.is_here = self._is_own and not remote.get("num_gpus")
        self.cores = max(1, int(remote.get("num_cpus") or 1))
        self._stopped = threading.Event()

    @property
    def _is_own(self) -> bool:
        return bool(self._address == "local")

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Connect to a cluster, or start one, and check that it can run a task of this sweep."""
        with contextlib.ExitStack() as stack:
            if self._is_own:
                stack.enter_context(_environment(_of_own_cluster()))
                more = {"_temp_dir": str(stack.enter_context(scratch())), "include_dashboard": False}
            else:
                _check_address(self._address)
                more = {}
            with read_write(self._launcher), open_dict(self._launcher):
                init, remote = self._launcher.ray.init, self._launcher.ray.remote
                init.setdefault("object_store_memory", STORE_BYTES if self._is_own else None)
                remote.setdefault("max_retries", 0)  # a job whose worker was killed has failed, as with any launcher
            settings: Any = OmegaConf.to_container(init, resolve=True)
            ray = _started(settings | QUIET | more | {"address": self._address})
            stack.callback(ray.shutdown)
            self._check_fits(ray)
            yield

    def _check_fits(self, ray: Any) -> None:
        """Raise ConfigError if no machine of the cluster can run a task: it would wait for ever."""
        remote: Any = OmegaConf.to_container(self._launcher.ray.remote, resolve=True)
        try:
            ray.remote(**remote)(lambda: None)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{KEY}.remote", remote, f"Ray takes no such task: {one_line(error, MOST_TEXT)}"
            ) from None
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        for name, kind in _RESOURCES.items():
            wanted = remote.get(name) or 0
            most = max((node.get(kind, 0.0) for node in nodes), default=0.0)
            if wanted > most:
                raise ConfigError(f"{KEY}.remote.{name}", wanted, f"machines of this Ray cluster have at most {most:g}")

    def at_once(self, jobs: int) -> int:
        """Return how many tasks the largest machine runs."""
        most = max((each["Resources"].get("CPU", 0.0) for each in import_module("ray").nodes()), default=0.0)
        return min(jobs, max(1, int(most) // self.cores))

    @contextlib.contextmanager
    def waiting(self, has_begun: Callable[[int], bool], in_order: bool) -> Iterator[None]:
        """During this block the launcher returns the error of a task, and waits for the other tasks.

        Ray begins tasks in any order. To begin jobs in order, each is handed over after the one before has begun.
        """
        ray: Any = import_module("ray")
        core: Any = import_module("hydra_plugins.hydra_ray_launcher._core")
        launch, tasks = core.launch_job_on_ray, dict[object, int]()  # the number of the job of each task

        def is_open(task: object) -> bool:
            """Return whether a task has not ended. One that need not begin is cancelled."""
            if self._stopped.is_set() and not has_begun(tasks[task]):
                ray.cancel(task)
            return not ray.wait([task], timeout=POLL_S)[0]

        def launched(context: object, remote: object, composed: DictConfig, *rest: object) -> object:
            last = next(reversed(tasks), None)
            while in_order and last is not None and not has_begun(tasks[last]) and is_open(last):
                pass
            task: object = launch(context, remote, composed, *rest)
            tasks[task] = composed.hydra.job.num
            return task

        def result(task: object) -> JobReturn:
            while is_open(task):
                pass
            try:
                found = ray.get(task)
                assert isinstance(found, JobReturn)
                return found
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                return failed(one_line(f"{type(error).__name__}: {lines[0]}", MOST_TEXT))

        with replaced(core, launch_job_on_ray=launched, ray=SimpleNamespace(get=result)):
            yield

    def stop(self) -> None:
        """Cancel the tasks that wait for a worker."""
        self._stopped.set()


def _of_own_cluster() -> dict[str, str]:
    """Return the variables of a cluster that only this sweep uses. Without the token anybody could run code in it."""
    own = {"RAY_USAGE_STATS_ENABLED": "0"}
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return own


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: os.environ.get(name, value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_address(address: str) -> None:
    """Raise ConfigError unless a Ray cluster answers at an address. Ray itself would end this process if not."""
    call = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check"]
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_S).close()
            call += ["--address", address]
        subprocess.run(call, capture_output=True, timeout=ANSWER_S, check=True)
    except (OSError, OverflowError, ValueError, subprocess.SubprocessError):
        wanted = "no Ray cluster answers there; give the HOST:PORT of one, or leave it out to start one here"
        raise ConfigError(f"{KEY}.init.address", address, wanted) from None


def _started(settings: dict[str, object]) -> Any:
    """Return Ray, connected. Its handlers of signals and exceptions are not installed."""
    hook = sys.excepthook
    ray: Any = import_module("ray")
    try:
        with signals.held(), replaced(import_module("ray._private.utils"), set_sigterm_handler=lambda handler: None):
            ray.init(**settings)
    except BaseException as error:
        ray.shutdown()
        if not isinstance(error, OSError | RuntimeError | TypeError | ValueError):
            raise
        text = one_line(f"{type(error).__name__}: {error}", MOST_TEXT)
        raise ConfigError("hydra/launcher", "ray", f"Ray does not start or connect: {text}") from None
    finally:
        sys.excepthook = hook
    return ray
