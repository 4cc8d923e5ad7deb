"""Times as a noisy GPU would give them, and A/B results made of them."""

from __future__ import annotations

import math

import numpy as np

from convlab.core.machine import clock
from convlab.core.timing import ab_timing, ratio
from convlab.core.timing.ab_result import AB
from tests.fakes import PLAIN

MOST = 2 * ratio.LOOKS[-1]


def quiet(rng, turns):
    return rng.normal(0, 0.001, turns)


class Machine:
    """Times A and B as a noisy GPU would: one sample a turn."""

    def __init__(self, noise, rng, planted):
        self.noise = np.exp(noise(rng, MOST))
        self.at = 0
        self.turns = [lambda: self.turn(1.0), lambda: self.turn(planted)]

    def turn(self, seconds):
        self.at += 1
        return [seconds * self.noise[self.at - 1]]


def until(seed=0, target=0.005, limit_seconds=math.inf):
    return ab_timing.RoundOptions(target, limit_seconds, seed, warm_seconds=0, least_seconds=0)


def in_rounds(turns, seed=0, tape=None, mode="cold"):
    """What rounds of turns give that do not wait for a clock to rise."""
    return ab_timing.in_rounds(mode, ab_timing.Plan(turns, ""), until(seed), tape)


class Tape:
    """A clock whose readings are given, one for each round."""

    missing = ""

    def __init__(self, throttled=lambda at: False):
        self.throttled = throttled
        self.at = 0

    def take(self):
        self.at += 1
        held = ("power cap",) if self.throttled(self.at) else ()
        return [clock.Reading(1000 if held else 1980, held)]


def timed(planted=1.021, notes=()):
    modes = tuple(
        in_rounds(Machine(quiet, np.random.default_rng(0), planted).turns, 0, Tape(), mode)
        for mode in ("cold", "hot")
    )
    return AB(
        "01_a",
        "02_b",
        PLAIN,
        "cuda",
        0.01,
        ("fp32", "tf32"),
        modes=modes,
        floors=(0.5, 0.1),
        notes=tuple(notes),
    )
