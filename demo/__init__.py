"""The demo: real orders through a real broker and Spark into SQLite, while the pipeline's driver is killed over and
over; three times at once, once for each delivery, with an audit at the end.
"""
