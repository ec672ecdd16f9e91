"""Estimators: sliding windows, averages, step times, calibration."""
