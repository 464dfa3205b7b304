"""How a node paces itself. Every number has a default that a user need not know."""

from __future__ import annotations

import msgspec


class NodeOptions(msgspec.Struct, frozen=True):
    """Times in microseconds."""

    wave_budget_us: int = 250_000
    catch_up_budget_us: int = 100_000
    catch_up_from_us: int = 5_000_000
    caught_up_us: int = 1_000_000
    sink_rows_max: int = 1_000_000
    wave_rows_min: int = 50_000
    wave_rows_max: int = 4_000_000
    wave_deadline_us: int = 120_000_000
    job_budget_us: int = 1_000_000
    job_rows_min: int = 10_000
    job_deadline_us: int = 600_000_000
    ingest_ahead_rows: int = 6_000_000
    delivery_wait_us: int = 500_000
    look_every_us: int = 100_000
    idle_commit_every_us: int = 1_000_000
    snapshot_look_every_us: int = 250_000
    snapshot_deadline_us: int = 120_000_000
    trim_every_us: int = 5_000_000
    retain_us: int = 3_600_000_000
    retain_unread_us: int = 7 * 86_400_000_000
    reopen_every_us: int = 1_000_000
    slotless_us: int = 20_000_000
    """How long to wait for a first executor before saying so."""
    segment_life_us: int = 600_000_000
    available_now: bool = False
