"""The protocol in TLA+, checked by TLC: the model is in ``docs/model``."""
