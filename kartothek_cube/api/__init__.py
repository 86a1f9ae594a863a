"""The public API: functions and classes by topic."""
