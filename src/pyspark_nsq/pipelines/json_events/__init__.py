"""Turns JSON bodies into columns, or says why they do not fit."""
