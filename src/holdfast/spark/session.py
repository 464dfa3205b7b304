"""The Spark settings that waves need, and a session that has them.

Guarantees:
    * `session()` returns a classic SparkSession; `require()` names the setting a given session lacks, what it is and
      what it has to be, before anything is started.
    * Nothing listens beyond this machine unless the user says so.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.errors import SessionUnfit
from holdfast.spark import ahead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED: Mapping[str, tuple[str, str]] = {
    "spark.python.daemon.module": ("holdfast.spark.daemon", "workers are forked with warm kernels"),
    "spark.python.worker.reuse": ("true", "a slot keeps its process"),
    "spark.task.maxFailures": ("1", "the node retries, not Spark"),
    "spark.speculation": ("false", "one slot runs a wave's work, not two"),
}
"""What a session must have: the value and why."""

RECOMMENDED: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.task.killTimeout": "200ms",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
    "spark.locality.wait": "10s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.executor.heartbeatInterval": "500ms",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "3000",
    "spark.network.timeoutInterval": "500ms",
    "spark.executor.removeDelayOnDisconnection": "100ms",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
JARS = "spark.jars"
"""How the settings begin by which connectors are brought: the JVM has to know them when it starts."""
LOCAL: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def settings(master: str | None = None) -> dict[str, str]:
    """Return the settings for your own `SparkSession.builder`: give each (name, value) to its `config`."""
    chosen = {name: value for name, (value, _) in REQUIRED.items()} | dict(RECOMMENDED)
    if master is None or master.startswith("local"):
        chosen |= LOCAL
    return chosen


def session(name: str, **conf: str) -> SparkSession:
    """Return a SparkSession with the settings that waves need. `conf` (dots in names need `**{...}`) overrides them.

    Without a master from spark-submit, `conf` or `holdfast run --master` it is `local[*]`. The JVM starts from a class
    archive (`jvm`).
    """
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise SessionUnfit(
            "holdfast needs a classic Spark session, and Spark Connect cannot run waves: unset SPARK_REMOTE and "
            "SPARK_CONNECT_MODE_ENABLED, and start the program where the driver is to be"
        )
    _worker_environment()
    given = "PYSPARK_GATEWAY_PORT" in os.environ
    own = not given and not _has_gateway()
    if own:
        from holdfast.spark.jvm import launch_gateway

        if (conf.get("spark.master") or os.environ.get("HOLDFAST_MASTER") or "local").startswith("local"):
            ahead.start(os.environ["PYSPARK_PYTHON"])
        jars = {name: value for name, value in conf.items() if name.startswith(JARS)}
        launch_gateway(conf.get("spark.driver.memory", "1g"), meanwhile=_import_ahead, conf=jars)
        # A program that this one starts is not to take the warm daemon that waits for our JVM.
        os.environ.pop(ahead.VARIABLE, None)
    from pyspark.sql import SparkSession

    fresh = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName(name)
    master = conf.get("spark.master") or os.environ.get("HOLDFAST_MASTER") or (None if given else "local[*]")
    if master is not None:
        builder = builder.master(master)
    for key, value in (settings(master) | _cluster_settings(master) | conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if own:
        # A program that this one starts has to make a JVM of its own.
        for variable in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(variable, None)
    sys.setswitchinterval(0.0005)
    if fresh:
        _wake_workers(spark)
        atexit.register(_hush, spark)
    return spark


def _cluster_settings(master: str | None) -> dict[str, str]:
    """Return what a cluster of `holdfast cluster start` asks for."""
    if master is None or not master.startswith("spark://"):
        return {}
    from holdfast.spark.cluster import cluster_settings

    return cluster_settings(master)


def _hush(spark: SparkSession) -> None:
    """Keep the JVM from telling how its work was cut off: this process ends, and takes it along."""
    with contextlib.suppress(Exception):
        spark.sparkContext.setLogLevel("OFF")


def _has_gateway() -> bool:
    """Return whether this process is connected to a JVM already; not worth importing pyspark to find out."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def _import_ahead() -> None:
    """Import what a pipeline will need, while the JVM starts."""
    for module in ("pyspark.sql.functions", "holdfast.pipeline.pipeline", "holdfast.spark.launch"):
        import_module(module)


def _wake_workers(spark: SparkSession) -> None:
    """Let Spark start its Python processes now, while the query is still being written down; nobody waits for it."""
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    context.parallelize(range(slots), slots).mapPartitions(_nothing)._jrdd.countAsync()


def _nothing(numbers: Iterable[int]) -> Iterator[int]:
    for _ in numbers:
        pass
    return iter(())


def require(spark: SparkSession) -> None:
    """Raise `SessionUnfit`, which names every setting that is missing, if waves cannot run on this session."""
    require_classic(spark)
    conf = spark.sparkContext.getConf()
    lacks = [
        f"{name} is {_shown(conf.get(name, None))} and must be {value!r} ({reason})"
        for name, (value, reason) in REQUIRED.items()
        if (conf.get(name, None) or "").lower() != value.lower()
    ]
    if lacks:
        raise SessionUnfit(
            "this Spark session cannot run waves: " + "; ".join(lacks) + ". Use hf.session(name), or put hf.settings() "
            "into your own builder before the session is made"
        )


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def require_classic(spark: SparkSession) -> None:
    """Raise `SessionUnfit` for a Spark Connect session, which has neither a JVM to ask nor RDDs to stand."""
    if not hasattr(spark, "_jsparkSession"):
        raise SessionUnfit(
            "holdfast needs a classic Spark session; this is a Spark Connect session: it cannot run waves. Unset "
            "SPARK_REMOTE, and make the session with hf.session(name)"
        )


def _worker_environment() -> None:
    """Let local executors find this very Python, and our daemon module in it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.environ.get("PYTHONPATH", "")
    if package_root not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([package_root, path] if path else [package_root])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
