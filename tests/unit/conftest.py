"""What holds for every unit test: an example of hypothesis may take as long as the machine is busy.
What hangs is ended by the time limit of its test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
