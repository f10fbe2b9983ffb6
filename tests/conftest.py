"""Settings of all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# The machine that runs the tests may be busy: how long an example takes says nothing. The examples are the same every
# time, so that a failure is the fault of the change that is tested; `make explore` tries others.
settings.register_profile("boltdp", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("boltdp")

# Whoever starts the tests in the background, or with nohup, lets them ignore these; the processes that they start and
# then stop must not inherit it.
for _ignored, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, _usual)
