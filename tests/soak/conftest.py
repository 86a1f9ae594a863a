"""Tests that take minutes: ``make soak``."""

from tests.support import ext4

# file systems can be made by the superuser only
collect_ignore = [] if ext4.is_possible() else ["test_power_failure_on_ext4.py"]
