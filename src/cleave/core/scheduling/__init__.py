"""Scheduling: a state machine that hands planned work out and survives churn."""
