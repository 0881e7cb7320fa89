"""The index of a key set: a Paimon table of sorted runs, and the dictionary of the files that it covers."""
