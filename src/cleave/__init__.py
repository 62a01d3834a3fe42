"""Cleave: train foundation models on the computers people already own."""
