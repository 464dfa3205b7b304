"""A real Kafka broker on loopback, for tests and benches.

    python -m tests.components.kafka FOLDER [--port PORT] [name=value ...]

prints its address when it is ready, and runs until its standard input closes or it is told to end.

Invariants:
    * The broker ends with the process that started it, also when that is killed.
    * After `kill` the same object starts it again at the same address on the same data: what was acknowledged is there.
    * `start` returns when the broker itself says that it has started; nothing is asked again and again.
"""

from __future__ import annotations

import argparse
import base64
import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.components.jars import jars_of
from tests.components.lifeline import dies_with_me

READY = "Kafka Server started"
READY_LIMIT_S = 120.0
LINES_KEPT = 20
TRIES = 3
"""A free port may be taken by somebody else before the broker has it."""

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One broker holds everything once.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed is taken back as soon as its old session is over: 9 s if nothing is said.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "1500",
}
LOGGING = """\
rootLogger.level=WARN
rootLogger.appenderRef.o.ref=o
appender.o.type=Console
appender.o.name=o
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=%d %p %c{1} %m%n
logger.s.name=kafka.server.KafkaRaftServer
logger.s.level=INFO
"""


class BrokerFailed(Exception):
    """The broker ended before it was ready; the message has its last words."""


class Broker:
    """One broker with its data in a folder. To be started from the main thread."""

    def __init__(self, folder: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = dict(settings or {})
        self._chosen = port is not None
        self._ports = (port, free_ports()[0]) if port is not None else free_ports()
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    @property
    def address(self) -> str:
        """What Kafka calls bootstrap.servers."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "a broker has a process once it was started"
        return self._process.pid

    def start(self) -> Broker:
        """Start it, on the data that is there, and return when it takes requests."""
        assert self._process is None, "it runs"
        is_new = not (self._folder / "data" / "meta.properties").exists()
        for tries_left in reversed(range(TRIES)):
            self._write_settings()
            if is_new:
                self._format()
            try:
                self._run()
                return self
            except BrokerFailed as failed:
                # The address of a broker that has data is known to its clients: it stays.
                if self._chosen or not is_new or not tries_left or "Address already in use" not in str(failed):
                    raise
                self._ports = free_ports()
                is_new = not (self._folder / "data" / "meta.properties").exists()
        raise AssertionError("the last try returns or raises")

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as its keeper would; nothing where it does not run."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        # Nobody needs its data any more, so nobody waits for it to put them in order.
        if self._process is not None:
            self.kill()

    def _write_settings(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        own, controller = (f"127.0.0.1:{port}" for port in self._ports)
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{own},CONTROLLER://{controller}",
            "log.dirs": str(self._folder / "data"),
            **self._settings,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self._folder / "server.properties").write_text("".join(lines))
        (self._folder / "log4j2.properties").write_text(LOGGING)

    def _format(self) -> None:
        # One that begins with a dash would be taken for an option.
        random = b"\0" + uuid.uuid4().bytes[1:]
        name = base64.urlsafe_b64encode(random).decode().rstrip("=")
        command = self._java("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", name, "-c", "server.properties")
        ran = subprocess.run(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            preexec_fn=dies_with_me(),
        )
        if ran.returncode != 0:
            raise BrokerFailed(f"Kafka's storage in {self._folder} could not be made: {ran.stdout}{ran.stderr}")

    def _run(self) -> None:
        with (self._folder / "server.log").open("a") as log:
            log.write("--- start\n")
        process = subprocess.Popen(
            self._java("-Xms128m", "-Xmx384m", "kafka.Kafka", "server.properties"),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=dies_with_me(),
        )
        output = process.stdout
        assert output is not None
        said: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        changed = threading.Event()
        ready = threading.Event()
        self._process = process
        self._listener = threading.Thread(
            target=self._listen, args=(output, said, ready, changed), name="kafka-output", daemon=True
        )
        self._listener.start()
        if not changed.wait(READY_LIMIT_S) or not ready.is_set():
            self.kill()
            raise BrokerFailed(f"Kafka in {self._folder} did not start at {self.address}: {''.join(said)}")

    def _listen(
        self, output: IO[str], said: collections.deque[str], ready: threading.Event, changed: threading.Event
    ) -> None:
        """Keep what the broker says until it ends, and tell when it is ready or has ended."""
        with output, (self._folder / "server.log").open("a", buffering=1) as log:
            for line in output:
                log.write(line)
                said.append(line)
                if READY in line:
                    ready.set()
                    changed.set()
        changed.set()

    def _java(self, *arguments: str) -> list[str]:
        options = [each for each in arguments if each.startswith("-X")]
        rest = arguments[len(options) :]
        path = os.pathsep.join(map(str, jars_of("broker")))
        configuration = f"-Dlog4j2.configurationFile={self._folder}/log4j2.properties"
        # The settings of this one are all in its folder.
        return ["java", *options, "-XX:+UseSerialGC", configuration, "-cp", path, *rest]

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        assert process is not None and self._listener is not None, "it does not run"
        process.send_signal(number)
        process.wait()
        self._listener.join()


def free_ports() -> tuple[int, int]:
    """Return two ports of loopback that nobody listens on at this moment."""
    with contextlib.ExitStack() as open_sockets:
        found = []
        for _ in range(2):
            free = open_sockets.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            found.append(free.getsockname()[1])
        return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.components.kafka", description="A Kafka broker on loopback.")
    parser.add_argument("folder", type=Path, help="its data, kept for the next start")
    parser.add_argument("--port", type=int, help="(default: a free one)")
    parser.add_argument("settings", nargs="*", metavar="name=value", help="settings of the broker's own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    settings = dict(each.split("=", 1) for each in options.settings)
    with Broker(options.folder.resolve(), options.port, settings) as broker, contextlib.suppress(KeyboardInterrupt):
        print(broker.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
