"""A module with things that can be run, or that seem so; the tests copy it into the directory that they run in."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from tidegate.errors import BrokerUnavailable, ConfigurationError, LedgerUnavailable, ListenerStopped
from tidegate.observe import Observers, Paused

PLANTED = "pl4nted"


def say(*words):
    # One write for the whole line: several workers share the pipe.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class App:
    def __init__(self, behave):
        self.behave = behave
        self.observers = Observers()

    def run(self, *, until_caught_up=False):
        return self.behave(until_caught_up)


def failing(error):
    def fail(until_caught_up):
        raise error

    return App(fail)


def wait(until_caught_up, once=True):
    stopped = threading.Event()

    def stop(number, frame):
        say("signal", signal.Signals(number).name)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    say("ready", os.getpid())
    stopped.wait()
    while not once:
        time.sleep(0.01)
    say("stopped", os.getpid())
    return 0


def first_fails(until_caught_up):
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        Path("waiting").touch()
        return wait(until_caught_up)
    while not Path("waiting").exists():
        time.sleep(0.01)
    raise LedgerUnavailable("the ledger is gone")


def show(until_caught_up):
    say("caught up" if until_caught_up else "forever", os.environ.get("TIDEGATE_CONFIG"), *sys.argv[1:])


def tell(until_caught_up):
    app.observers(Paused("billing", True))
    return wait(until_caught_up)


app = App(tell)
shows = App(show)
waits = App(wait)
stubborn = App(lambda until_caught_up: wait(until_caught_up, once=False))
fails_first = App(first_fails)
returns_nothing = App(lambda until_caught_up: None)
returns_7 = App(lambda until_caught_up: 7)
stops = failing(ListenerStopped("group 'billing', orders[0]@7:\nthe handler failed"))
raises = failing(ValueError(f"cannot reach mysql+pymysql://me:{PLANTED}@db/shop"))
misconfigured = failing(ConfigurationError("no such thing"))
no_ledger = failing(LedgerUnavailable("the ledger is gone"))
no_broker = failing(BrokerUnavailable("the broker is gone"))
interrupted = failing(KeyboardInterrupt())
number = 5
