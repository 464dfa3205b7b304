"""A standalone Spark cluster on this machine, for trying things: a master and workers, each with one executor to give.

```python
with Cluster.start(executors=3) as cluster:
    spark = hf.session("try", **{"spark.master": cluster.url})
```

Guarantees:
    * Everything listens on loopback. Only who can read the cluster's secret, a file of the user's own, may use it.
    * It ends with the process that started it, however that ends: the kernel ends master and workers, and these their
      executors.
    * Workers may be told to be on hosts of their own (127.0.0.2, ...), to try what happens when a machine goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from holdfast.errors import Misconfigured
from holdfast.log.watch import Watch
from holdfast.spark.jvm import cache_folder, class_path, java_command, module_options, spark_home

START_LIMIT_S: Final = 120.0
LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_SCALA: Final = "2.13"
_MASTER_IS_UP: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_IS_UP: Final = re.compile(r"Successfully registered with master")
_FLAGS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


@dataclass(slots=True)
class Worker:
    """A worker's process, and what it was started with."""

    number: int
    host: str
    log: Path
    process: subprocess.Popen[bytes]


@dataclass(slots=True)
class Cluster:
    """A master with its workers. `stop` ends them all; so does the end of this process."""

    url: str
    folder: Path
    cores: int
    memory: str
    master: subprocess.Popen[bytes]
    workers: dict[int, Worker] = field(default_factory=dict)
    environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    own_hosts: bool = False

    @classmethod
    def start(
        cls,
        executors: int = 3,
        cores: int = 1,
        memory: str = "1g",
        own_hosts: bool = False,
        environment: Mapping[int, Mapping[str, str]] | None = None,
    ) -> Cluster:
        """Start a master, and a worker for each executor; return when all of them have registered.

        `environment` gives workers (by number, from 0) variables that their executors see too.
        """
        folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        _write_properties(folder, secrets.token_hex(16))
        options = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        master = _launch(folder, "master", "master.Master", options, LOOPBACK, {})
        try:
            url = _wait_for(master, folder / "master.log", _MASTER_IS_UP)
        except BaseException:
            _end([master])
            shutil.rmtree(folder, ignore_errors=True)
            raise
        cluster = cls(url, folder, cores, memory, master, {}, environment or {}, own_hosts)
        try:
            _remember_secret(url, folder)
            started = [cluster._launch_worker(number) for number in range(executors)]
            for worker in started:
                _wait_for(worker.process, worker.log, _WORKER_IS_UP)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def start_worker(self, number: int) -> Worker:
        """Start one more worker, or one again that has ended; return when it has registered."""
        worker = self._launch_worker(number)
        _wait_for(worker.process, worker.log, _WORKER_IS_UP)
        return worker

    def _launch_worker(self, number: int) -> Worker:
        before = self.workers.get(number)
        if before is not None:
            _end([before.process])
        host = f"127.0.0.{number + 2}" if self.own_hosts else LOOPBACK
        name = f"worker-{number}-{time.time_ns():x}"
        options = ["--host", host, "--cores", str(self.cores), "--memory", f"{_megabytes(self.memory) + 512}m"]
        options += ["--work-dir", str(self.folder / "work" / str(number)), "--webui-port", "0", self.url]
        environment = self.environment.get(number, {})
        process = _launch(self.folder, name, "worker.Worker", options, host, environment)
        worker = self.workers[number] = Worker(number, host, self.folder / f"{name}.log", process)
        return worker

    def stop(self) -> None:
        """End master and workers; their executors end with them."""
        _end([*(worker.process for worker in self.workers.values()), self.master])
        _secret_file(self.url).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def cluster_settings(master: str) -> dict[str, str]:
    """Return what a session needs for a cluster that `Cluster` has started on this machine; nothing for any other."""
    if not master.startswith("spark://"):
        return {}
    file = _secret_file(master)
    with contextlib.suppress(OSError):
        if file.stat().st_uid == os.getuid():
            secret = file.read_text(encoding="utf-8").strip()
            host = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
            return {"spark.authenticate": "true", "spark.authenticate.secret": secret} | host
    return {}


def _launch(
    folder: Path, name: str, main: str, options: Sequence[str], host: str, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    home = spark_home()
    logging = Path(__file__).with_name("cluster_log4j2.properties")
    command = [java_command(), *_FLAGS, *module_options(), f"-Dlog4j2.configurationFile={logging}"]
    command += ["-cp", class_path(home), f"org.apache.spark.deploy.{main}"]
    # Not on the command line, which everybody on the machine can read.
    command += ["--properties-file", str(folder / "cluster.properties"), *options]
    variables = dict(os.environ, SPARK_HOME=home, SPARK_SCALA_VERSION=_SCALA, SPARK_LOCAL_IP=host) | dict(environment)
    for variable in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        variables.pop(variable, None)
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            # A group of its own: Ctrl-C is for the one who started it.
            process_group=0,
            preexec_fn=_die_with(os.getpid()),
        )


def _die_with(parent: int) -> Callable[[], None]:
    library = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _wait_for(process: subprocess.Popen[bytes], log: Path, pattern: re.Pattern[str]) -> str:
    """Return what the pattern has found in a process's log, as soon as it is there."""
    deadline = time.monotonic() + START_LIMIT_S
    with contextlib.closing(Watch([log])) as watch:
        while True:
            found = pattern.search(log.read_text(errors="replace"))
            if found:
                return found.group(found.lastindex or 0)
            if process.poll() is not None or time.monotonic() > deadline:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                ended = f"ended with exit status {process.returncode}" if process.poll() is not None else "is not ready"
                raise Misconfigured(f"a process of the cluster {ended}; the end of its log:\n{last}")
            watch.wait(1.0)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
    for process in processes:
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_properties(folder: Path, secret: str) -> None:
    lines = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.master.rest.enabled": "false",
        # An executor that was lost is replaced at once, and a worker that went is known at once.
        "spark.worker.timeout": "10",
    }
    _write_private(folder / "cluster.properties", "".join(f"{name} {value}\n" for name, value in lines.items()))
    _write_private(folder / "secret", secret)


def _remember_secret(url: str, folder: Path) -> None:
    file = _secret_file(url)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.unlink(missing_ok=True)
    _write_private(file, (folder / "secret").read_text(encoding="utf-8"))


def _secret_file(url: str) -> Path:
    return cache_folder() / "clusters" / re.sub(r"[^0-9a-zA-Z.]+", "-", url)


def _write_private(file: Path, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)


_SIZE: Final = re.compile(r"(\d+)\s*([mg])b?", re.IGNORECASE)


def _megabytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise Misconfigured(
            f"memory {text!r} is not understood; expected megabytes or gigabytes, such as '1g' or '512m'"
        )
    return int(found.group(1)) * (1024 if found.group(2).lower() == "g" else 1)


def lines_of(cluster: Cluster) -> Iterator[str]:
    """Yield what somebody who wants to use the cluster has to know."""
    yield f"master    {cluster.url}"
    for worker in cluster.workers.values():
        yield f"worker {worker.number}  {worker.host}, {cluster.cores} core(s), {cluster.memory} for an executor"
    yield f"run       holdfast run --master {cluster.url} FILE"
    yield f"submit    spark-submit --master {cluster.url} --properties-file {cluster.folder}/cluster.properties FILE"
