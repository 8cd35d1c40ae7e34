"""Shared by all rooms."""

from hypothesis import settings

# A slow machine is no failure of a property; pytest's own timeout bounds a test that hangs.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
