"""Delete journals and terms that nothing can need.

Invariants:
    * A journal goes only when no stream's newest term has it, and none names it as the one before: so whoever takes a
      stream over, at whatever step the last taker died, finds its journal.
    * Stopping anywhere leaves files that the next call deletes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from holdfast.errors import StoreCorrupt
from holdfast.log.journal import journal_numbers, journal_path
from holdfast.log.terms import Term, TermRecord, read_term, seal_path, standing, term_path
from holdfast.ports import Store

TERMS_KEPT = 2
"""How many terms of a stream keep their files: readers of the one before look for its end in the newest."""


def clear_journals(store: Store, journal: str, before: int) -> None:
    """Delete the files of a journal that are older than `before`."""
    for number in journal_numbers(store, journal):
        if number < before:
            store.delete(journal_path(journal, number))


def clear_terms(store: Store, term: Term) -> None:
    """Delete the terms of these streams before the last two, and the journals that were theirs alone."""
    for name in term.names:
        old = [record for record in _records(store, name) if record.number <= term.numbers[name] - TERMS_KEPT]
        # Journals first: a term whose journal is still there must stay, or nobody would know of it.
        for record in old:
            if not _is_needed(store, record.journal, [*record.names, *term.names]):
                store.delete(record.journal)
        for record in old:
            if not store.list(record.journal):
                store.delete(seal_path(name, record.number))
                store.delete(term_path(name, record.number))


def _records(store: Store, name: str) -> list[TermRecord]:
    records = []
    for number in standing(store, name).numbers:
        # Another process that shares an old journal may clear at the same time.
        with contextlib.suppress(FileNotFoundError, StoreCorrupt):
            records.append(read_term(store, name, number))
    return records


def _is_needed(store: Store, journal: str, names: Sequence[str]) -> bool:
    """Return whether the newest term of one of the streams has, or goes on from, a journal."""
    for name in set(names):
        numbers = standing(store, name).numbers
        if not numbers:
            continue
        try:
            newest = read_term(store, name, numbers[-1])
        except (FileNotFoundError, StoreCorrupt):
            return True
        if newest.journal == journal or (newest.previous is not None and newest.previous.journal == journal):
            return True
    return False
