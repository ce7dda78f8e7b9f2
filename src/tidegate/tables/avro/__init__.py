"""Avro: the schema, and reading and writing its values."""
