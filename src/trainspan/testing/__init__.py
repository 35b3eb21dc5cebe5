"""In: what a test wants to see happen. Out: fakes of the outside world, and real parts of it under a test's control.

Never: imported by anything but tests, and benchmarks.
"""
