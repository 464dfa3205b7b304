"""Start a peer's JVM the fast way: `java` itself, light flags, and classes from an archive (AppCDS).

Invariants:
    * The command line is the one that Spark's own launcher prints, with our flags put in front of it; so module
      options and class path are Spark's.
    * An archive is used with the flags and the class path that it was made with; Java ignores it otherwise.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

LIGHT_FLAGS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
START_LIMIT_S: Final = 30.0
EXIT_LIMIT_S: Final = 60.0
POLL_S: Final = 0.005


def jvm_command(memory: str) -> list[str]:
    """Ask Spark's launcher for the command of a driver's JVM; this takes a short JVM of its own."""
    import pyspark

    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    launcher = ["java", "-cp", jars, "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]
    printed = subprocess.run(
        [*launcher, "--driver-memory", memory, "pyspark-shell"], env=_environment(), capture_output=True, check=True
    )
    parts = [part.strip() for part in printed.stdout.decode().split("\0")]
    # A class archive cannot be used together with an incubator module; without one it would be no help to the peer.
    return [part for part in parts if part and not part.startswith("--add-modules=jdk.incubator")]


class Gateway:
    """One JVM that PySpark in this process will use, instead of starting its own."""

    def __init__(self, command: list[str], flags: list[str]) -> None:
        self._command = [command[0], *LIGHT_FLAGS, *flags, *command[1:]]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the JVM and tell PySpark where it listens."""
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            told = Path(folder, "gateway")
            environment = _environment() | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}
            # It ends when its standard input closes, so it never outlives this process.
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
            port, secret = self._wait_until_told(told)
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = secret

    def _wait_until_told(self, told: Path) -> tuple[int, str]:
        assert self._process is not None
        limit_s = time.monotonic() + START_LIMIT_S
        while not (told.exists() and told.stat().st_size):
            if self._process.poll() is not None or time.monotonic() > limit_s:
                raise TimeoutError(f"the peer's JVM did not come up within {START_LIMIT_S:.0f} s: {self._command[:6]}")
            time.sleep(POLL_S)
        told_bytes = told.read_bytes()
        port, length = struct.unpack("!ii", told_bytes[:8])
        return port, told_bytes[8 : 8 + length].decode()

    def stop(self) -> None:
        """Let the JVM end by itself, which is when it writes an archive that it was asked for."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(EXIT_LIMIT_S)


def _environment() -> dict[str, str]:
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    return dict(os.environ) | {
        "SPARK_HOME": home,
        "SPARK_SCALA_VERSION": "2.13",
        "_PYSPARK_DRIVER_CALLBACK_HOST": "127.0.0.1",
    }
