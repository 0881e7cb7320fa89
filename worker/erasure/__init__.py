"""Erasure: data files written anew without some rows, snapshots that expire, and a look at what is left."""
