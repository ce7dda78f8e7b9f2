"""The pipeline files: the same pipeline three times; one line of them differs."""

from __future__ import annotations

from pathlib import Path

from demo.orders import TOPIC
from tidegate import Delivery

# A Java machine that is ready soonest: it lives for seconds.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss1m"

_TEXT = """\
# Written by the demo. To run it yourself: tidegate pipeline run FILE
topics = "{topic}"
group = "demo"
kafka = "{kafka}"
ledger = "sqlite:///{database}"

[schema]
id = "integer"
customer = "integer"
amount = "decimal(12,2)"

[into]
table = "orders"                # without a key: an order that comes twice is there twice
create = true

[run]
delivery = "{delivery}"
max_records = {batch}
available_now = true

[spark]
master = "local[2]"

[spark.conf]
spark.driver.memory = "512m"
spark.driver.extraJavaOptions = "{jvm}"
"""


def write_pipeline(directory: Path, delivery: Delivery, kafka: str, batch: int) -> tuple[Path, Path]:
    """Write the file for a delivery; where it is, and where the database will be."""
    file, database = directory / f"{delivery}.toml", directory / f"{delivery}.db"
    file.write_text(_TEXT.format(topic=TOPIC, kafka=kafka, database=database, delivery=delivery, batch=batch, jvm=_JVM))
    return file, database
