"""Kafka records into a database, exactly once."""
