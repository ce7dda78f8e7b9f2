"""A consumer group in one process: the core and the memory ledger under seeded schedules of faults."""
