"""What is being computed for the run while it is served."""

from __future__ import annotations

from .base import Count, Number, Record


class Coming(Record):
    """Which analyses the run has, and which are being made."""

    version: str
    """of the analyses that are served: another one if there are new ones; empty if the run is not there"""
    running: bool
    """whether a process is analyzing the run"""
    steps: list[str]
    """what it was asked for, in order"""
    done: Count
    """how many of these are done"""
    now: str
    """the stage it is in"""
    share: Number
    """how much of that stage is done"""
    missing: list[str]
    """analyses that the run does not have"""
