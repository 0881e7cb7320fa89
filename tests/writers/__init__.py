"""Histories of several writers of one table, through the service, against a model in plain words."""
