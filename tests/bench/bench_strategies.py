"""Strategies that the tests run in processes of their own."""

import os
import signal
import time

import numpy as np


def logged(path, name, value=1.0):
    """Appends its name to a file each time it is run."""

    def run():
        with open(path, "a", encoding="utf-8") as log:
            log.write(name + "\n")
        return {"value": np.full(3, value)}

    return run


def talkative():
    print("loading")

    def run():
        print("running")
        os.write(1, b"from C\n")
        return {}

    return run


def allocating(megabytes, cached=False):
    """Needs memory for a moment, or keeps it for later repetitions as some frameworks do."""
    cache = []

    def run():
        block = cache.pop() if cache else np.ones(megabytes * 10**6 // 8)
        block += 1.0
        if cached:
            cache.append(block)
        return {}

    return run


def raising_at_load():
    raise LookupError("no such thing\nsecond line")


def raising():
    def run():
        raise ArithmeticError("it went wrong")

    return run


def exiting(code):
    return lambda: os._exit(code)


def killed():
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def complaining():
    def run():
        print("a last word")
        os._exit(1)

    return run


def sleeping(seconds):
    def run():
        time.sleep(seconds)
        return {}

    return run


def returning(**values):
    return lambda: {name: np.array(value) for name, value in values.items()}
