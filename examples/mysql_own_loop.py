"""A poll loop of your own, on MySQL: the offset and the data in one transaction, and a zombie cannot commit."""

from os import environ

from confluent_kafka import Consumer
from sqlalchemy import text

from tidegate import LedgerError, OwnLoop, open_ledger

kafka = {"bootstrap.servers": environ.get("KAFKA", "localhost:9092"), "group.id": "billing"}
kafka |= {"enable.auto.commit": False, "auto.offset.reset": "error"}
consumer = Consumer(kafka)
ledger = open_ledger(environ.get("LEDGER", "mysql+pymysql://shop@localhost/shop"))
loop = OwnLoop(consumer, ledger, ["orders"], kafka=kafka)
while True:
    if record := loop.accept(consumer.poll(1.0)):
        try:
            with loop.transaction(record) as tx:
                tx.execute(text("UPDATE totals SET total = total + :amount"), {"amount": int(record.value or 0)})
        except LedgerError as error:  # go on polling: what was not committed is read again
            print(error)
