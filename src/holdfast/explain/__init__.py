"""A pipeline drawn for a person: what it reads, keeps, promises and writes. Nothing here does I/O."""
