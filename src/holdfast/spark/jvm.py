"""Start the driver's JVM from a class archive, which halves the time of a cold start.

Guarantees:
    * The archive is made once for a Java, a PySpark and a set of jars, in the user's cache folder; one that is missing
      or stale is made again by a separate process in the background. It is never a reason to fail: without it the
      JVM starts as it always did.
    * Where a gateway exists already (spark-submit, a notebook), nothing is done.
    * The JVM ends with this process: its standard input closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.errors import Misconfigured

JAVA_VERSION_MIN = 17
SHELL = "pyspark-shell"
"""What Spark calls a program that is connected to from Python."""
ARCHIVES_KEPT = 4
"""Each takes about 80 MB."""
LIGHT_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A driver that schedules small jobs gains nothing from the optimizing compiler and loses its start to it."""


def java_command() -> str:
    """Return the path of a Java that Spark can run on; one sentence says what to install where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no `java` on the PATH"
        raise Misconfigured(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and {where}: "
            f"install it, for example `apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless`"
        )
    version = java_version(java)
    if version < JAVA_VERSION_MIN:
        raise Misconfigured(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and {java} is Java {version}: "
            f"install it, for example `apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless`, or set JAVA_HOME"
        )
    return java


def java_version(java: str) -> int:
    """Return the feature number (17 of 17.0.15; 8 of 1.8.0)."""
    text = _version_text(java)
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if not found:
        raise Misconfigured(f"`{java} -version` printed no version but: {text.strip()[:200]}")
    return int(found.group(1))


def _version_text(java: str) -> str:
    """Read the `release` file beside the JVM where there is one: it costs no process."""
    release = Path(os.path.realpath(java)).parent.parent / "release"
    try:
        found = re.search(r'^JAVA_VERSION="(.*)"', release.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return f'version "{found.group(1)}"'
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def spark_home() -> str:
    import pyspark

    return os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)


def launch_gateway(
    driver_memory: str = "1g",
    archive: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Start the JVM and say in the environment where its gateway is, so that SparkContext connects to it.

    `meanwhile` is called while the JVM starts. `conf` is what has to be known by then: which jars it loads.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    java = java_command()
    file = archive_path(java) if archive else None
    flags = list(LIGHT_FLAGS)
    if file is not None and file.exists():
        flags.append(f"-XX:SharedArchiveFile={file}")
    elif file is not None and "HOLDFAST_ARCHIVE_BUILD" not in os.environ:
        make_archive_in_background()
    with _starting(java, flags, driver_memory, submit_arguments(conf or {})) as starting:
        meanwhile()
        port, secret = starting.connection()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    _gateways.append(starting.process)


_gateways: list[subprocess.Popen[bytes]] = []
"""Held for as long as this process lives: a closed standard input ends the JVM."""


class _Starting:
    """A JVM that has not yet said where its gateway is."""

    def __init__(self, process: subprocess.Popen[bytes], info: str) -> None:
        self.process = process
        self._info = info

    def connection(self) -> tuple[int, str]:
        """Wait for the gateway; return its port and secret."""
        from holdfast.log.watch import Watch

        with contextlib.closing(Watch([os.path.dirname(self._info)])) as watch:
            while True:
                found = self._read()
                if found is not None:
                    return found
                if self.process.poll() is not None:
                    code = self.process.returncode
                    raise Misconfigured(f"the JVM ended at once, with exit code {code}; its output is above")
                watch.wait(0.25)

    def _read(self) -> tuple[int, str] | None:
        try:
            with open(self._info, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        if len(content) < 8:
            return None
        port, length = struct.unpack("!ii", content[:8])
        return (port, content[8 : 8 + length].decode()) if len(content) >= 8 + length else None


def submit_arguments(conf: Mapping[str, str]) -> list[str]:
    """Return what follows `spark-submit`: settings, and what the user has put into PYSPARK_SUBMIT_ARGS."""
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return given + shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", SHELL))


@contextlib.contextmanager
def _starting(java: str, flags: list[str], memory: str, arguments: Sequence[str] = (SHELL,)) -> Iterator[_Starting]:
    home = spark_home()
    command = [java, f"-Xmx{memory}", *flags, *module_options(), "-cp", class_path(home)]
    command += ["org.apache.spark.deploy.SparkSubmit", *arguments]
    with tempfile.TemporaryDirectory(prefix="holdfast-gateway-") as folder:
        info = os.path.join(folder, "connection")
        environment = dict(os.environ, _PYSPARK_DRIVER_CONN_INFO_PATH=info, SPARK_HOME=home, SPARK_CONNECT_MODE="0")
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            yield _Starting(process, info)
        except BaseException:
            # A JVM that is interrupted while it starts does not look at its input: nothing else would end it.
            process.kill()
            process.wait()
            raise


def class_path(home: str) -> str:
    """Return the JVM's class path: Spark's configuration folder, if there is one, and its jars."""
    folders = [os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")]
    return ":".join([folder for folder in folders if os.path.isdir(folder)] + [os.path.join(home, "jars", "*")])


def module_options() -> list[str]:
    """Return what Spark's launcher passes so that it may reach into the Java runtime (`JavaModuleOptions`).

    Not its incubator module for vectors: a class archive cannot be used with one, and nothing here multiplies matrices.
    """
    opened = (
        "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
        "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
    )
    options = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opened.split()]
    options += ["--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED"]
    options += ["-Dio.netty.tryReflectionSetAccessible=true", "-Dio.netty.allocator.type=pooled"]
    options += ["-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE"]
    if "SPARK_CONF_DIR" not in os.environ:
        options.append(f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}")
    return [*options, "-Dderby.connection.requireAuthentication=false"]


def archive_path(java: str) -> Path | None:
    """Return where the class archive for this Java and these jars is or will be; None where it is turned off."""
    if os.environ.get("HOLDFAST_CLASS_ARCHIVE", "on").lower() in ("off", "0", "false"):
        return None
    home = spark_home()
    jars = os.path.join(home, "jars")
    real = os.path.realpath(java)
    facts = [real, str(os.stat(real).st_mtime_ns), _version_text(java), class_path(home)]
    facts += [*LIGHT_FLAGS, *module_options()]
    for entry in sorted(os.scandir(jars), key=lambda entry: entry.name):
        facts.append(f"{entry.name} {entry.stat().st_size} {entry.stat().st_mtime_ns}")
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]
    return cache_folder() / f"spark-{name}.jsa"


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "holdfast"


def make_archive_in_background() -> None:
    """Start a process of low priority that makes the archive; the next start will use it, and nobody waits for it."""
    command = [sys.executable, "-m", "holdfast.spark.jvm"]
    nowhere = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    os.posix_spawn(command[0], command, os.environ, file_actions=nowhere, setsid=True)


def make_archive() -> Path | None:
    """Make the archive if it is missing; return it, or None if another process is at it or the folder takes no file."""
    java = java_command()
    target = archive_path(java)
    if target is None or target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open(target.parent / "archive.lock", "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    with lock:
        # Other installations of the same user have archives of their own.
        for old in sorted(target.parent.glob("spark-*.jsa*"), key=_modified_s, reverse=True)[ARCHIVES_KEPT - 1 :]:
            old.unlink(missing_ok=True)
        temporary = target.with_suffix(f".jsa.{os.getpid()}")
        _run_once(java, temporary)
        if temporary.exists():
            temporary.rename(target)
    return target if target.exists() else None


def _modified_s(file: Path) -> float:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _run_once(java: str, archive: Path) -> None:
    """Run a session that does what nodes do, in a JVM that writes down which classes it loaded."""
    os.environ["HOLDFAST_ARCHIVE_BUILD"] = "1"
    with _starting(java, [*LIGHT_FLAGS, f"-XX:ArchiveClassesAtExit={archive}"], "1g") as starting:
        port, secret = starting.connection()
    process = starting.process
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    try:
        from holdfast.spark.archive_session import exercise

        exercise()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(120)


if __name__ == "__main__":
    os.nice(19)
    made = make_archive()
    print(made if made else "no class archive was made")
