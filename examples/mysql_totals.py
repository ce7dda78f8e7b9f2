"""A total in MySQL that is right to the cent: the amount and the offset are added in one transaction."""

from os import environ

from sqlalchemy import text

from tidegate import App, Record, Transaction

app = App(
    kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "mysql+pymysql://shop@localhost/shop")
)
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS listened (total BIGINT NOT NULL)"))
    connection.execute(text("INSERT INTO listened SELECT 0 FROM DUAL WHERE NOT EXISTS (SELECT * FROM listened)"))


@app.listener("amounts", group="totals")
def add(record: Record, tx: Transaction) -> None:
    tx.execute(text("UPDATE listened SET total = total + :amount"), {"amount": int(record.value or 0)})


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
