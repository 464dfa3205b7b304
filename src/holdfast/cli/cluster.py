"""`holdfast cluster start`: a standalone Spark cluster on this machine, for as long as the command runs."""

from __future__ import annotations

import signal
import threading
from importlib import import_module
from typing import Any

import click

from holdfast.cli.output import common_options, example, print_json, print_message

LOOK_EVERY_S = 0.5


@click.group("cluster")
def command() -> None:
    """Try things on a small Spark cluster on this machine."""


@command.command("start", epilog=example("holdfast cluster start --executors 3"))
@click.option("--executors", type=click.IntRange(1, 64), default=3, show_default=True, help="How many there are to be.")
@click.option("--cores", type=click.IntRange(1, 64), default=1, show_default=True, help="Of each executor.")
@click.option("--memory", default="1g", show_default=True, help="For each executor, such as 512m or 1g.")
@click.option(
    "--own-hosts", is_flag=True, help="Put each executor on an address of its own, as if it were on another machine."
)
@common_options
def start(executors: int, cores: int, memory: str, own_hosts: bool, as_json: bool) -> int:
    """Start a master and workers on loopback, say how to use them, and stop them at Ctrl-C."""
    cluster_module: Any = import_module("holdfast.spark.cluster")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stop.set())
    with cluster_module.Cluster.start(executors, cores, memory, own_hosts) as cluster:
        if as_json:
            workers = [{"worker": each.number, "host": each.host} for each in cluster.workers.values()]
            print_json({"event": "started", "master": cluster.url, "workers": workers})
        else:
            for line in cluster_module.lines_of(cluster):
                print_message(line)
            print_message("Ctrl-C stops all of it.")
        ended: set[int] = set()
        while not stop.wait(LOOK_EVERY_S):
            for worker in cluster.workers.values():
                if worker.number not in ended and worker.process.poll() is not None:
                    ended.add(worker.number)
                    _tell_ended(f"worker {worker.number}", worker.process.returncode, as_json)
            if cluster.master.poll() is not None:
                _tell_ended("the master", cluster.master.returncode, as_json)
                return 1
    return 0


def _tell_ended(what: str, status: int, as_json: bool) -> None:
    if as_json:
        print_json({"event": "ended", "what": what, "status": status})
    else:
        print_message(f"holdfast: {what} has ended with status {status}")
