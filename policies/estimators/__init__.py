"""Estimates from what was seen: sliding windows, averages, step times, calibration."""
