"""The pure core: values, state machines and policies. No I/O, and the clock is passed in."""
