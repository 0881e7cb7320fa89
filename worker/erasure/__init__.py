"""Erasure: data files written anew without some rows, snapshots that expire, and a search of what is left."""
