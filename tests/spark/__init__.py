"""Pipelines, on a real Spark."""
