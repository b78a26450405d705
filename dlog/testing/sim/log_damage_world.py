"""Histories of logs whose list is damaged again and again, and repaired, while everybody works on
them. Of the weather that there is anyway, with many segments and small pages, so that there is
something to be damaged.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.testing.sim.log_swarm import LogWeather, draw_log_weather
from dlog.testing.sim.log_world import LogHistory, abstract_scene, settings
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World


def draw_repair_weather(chance: Chance) -> LogWeather:
    weather = draw_log_weather(chance, life=0.5)
    return dataclasses.replace(
        weather,
        appends=chance.pick((5, 8, 20), "appends, of a log with many segments"),
        rotate_every=chance.pick((1, 1, 2), "rotation every, of these"),
        page_segments=chance.pick((2, 3, 128), "segments of a page of these"),
        slow=min(weather.slow, 10.0),
        removers=0,
        checkers=chance.pick((1, 2, 3), "checkers"),
        damages=chance.pick((1, 2, 4, 8), "damages"),
    )


def run_repair_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_repair_weather(chance)
    if fixed:
        weather = weather.fixed(**fixed)
    with settings(world, weather):
        LogHistory(abstract_scene(world, weather)).run()
    return world
