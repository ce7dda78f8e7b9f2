"""The pure part of Tidegate: values, states and decisions. No I/O, no threads; callers pass the current time in."""
