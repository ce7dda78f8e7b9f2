"""Finds Java, which Spark and the sandbox's Kafka need, and downloads their jars."""
