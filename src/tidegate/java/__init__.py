"""Java, which Spark and the sandbox's Kafka run on, and the jars that they need."""
