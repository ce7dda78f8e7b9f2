"""A poll loop of your own, on MySQL: it adds to the one row of `totals`, in the transaction that moves the offset."""

from os import environ
from signal import SIG_DFL, SIGINT, signal

from confluent_kafka import Consumer
from sqlalchemy import text

from tidegate import OwnLoop, TidegateError, open_ledger

kafka = {"bootstrap.servers": environ.get("KAFKA", "localhost:9092"), "group.id": "billing"}
kafka |= {"enable.auto.commit": False, "auto.offset.reset": "error"}
consumer = Consumer(kafka)
ledger = open_ledger(environ.get("LEDGER", "mysql+pymysql://shop@localhost/shop"))
loop = OwnLoop(consumer, ledger, ["orders"], kafka=kafka)
signal(SIGINT, SIG_DFL)
print(__doc__, "Ctrl-C ends it: what is not committed then is read again.", sep="\n", flush=True)
while True:
    if record := loop.accept(consumer.poll(1.0)):
        try:
            with loop.transaction(record) as tx:
                tx.execute(text("UPDATE totals SET total = total + :amount"), {"amount": int(record.value or 0)})
        except TidegateError as error:  # go on polling: what was not committed is read again
            print(error)
