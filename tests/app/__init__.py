"""Listeners: binding, decoding, handling, and the loop around them."""
