"""`kvbridge bench serve`: real engines, a prefill and a decode engine for each connector, in one interleaved run.

What the figures mean is in `report.DEFINITIONS`, which is printed with them.
"""
