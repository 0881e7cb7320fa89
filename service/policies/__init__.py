"""Policies: when jobs run by themselves, and how often they are retried."""
