"""What happened to an input that may be read or refused."""

import tracemalloc


def refusal(action):
    """The message of the ValueError that `action` raises, or None when it succeeds. Nothing else may be raised."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return None


def refusal_and_peak(action):
    """The same, with the most bytes of Python memory that were in use at once."""
    tracemalloc.start()
    try:
        return refusal(action), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
