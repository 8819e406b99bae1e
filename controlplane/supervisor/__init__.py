"""Starts, watches and stops every process of a single-machine Farrier (`make up`).

`processes.py` says what runs; `launch.py` in which order; `manager.py` watches. Nothing here imports Django, so that it
can report a broken settings file instead of dying from it.
"""
