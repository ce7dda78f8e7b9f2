"""The pure part of Tidegate: values, states and decisions; no I/O, no threads, the clock is passed in."""
