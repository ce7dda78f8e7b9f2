"""Protobuf: its schemas, and the values of its messages."""
