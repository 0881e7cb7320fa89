"""Which small data files of a partition a rewriting takes, by their sizes. Pure.

Alike for the worker, which chooses and counts, and for the service, which simulates it. A file is written
anew only along with others that have enough bytes for it to get larger by a factor: so each byte is written
about as often as the logarithm of a partition's size says, and not each time.
"""

from collections.abc import Iterable


def files_taken(
    sizes: Iterable[tuple[float, int]],
    *,
    size_ratio: float,
    min_files: int,
    target_bytes: float,
    max_bytes: float,
    others: tuple[float, int] = (0, 0),
    partitions: int = 1,
) -> int:
    """How many of the smallest files are written anew: none, if they are too few.

    The largest of them is at most `size_ratio` times as large as all others together.

    sizes: of small files, from the smallest on, each with how many have it. others: bytes and number of files
    that are taken in any case. partitions: over which the files are spread evenly.
    """
    together, number = others[0] / partitions, 0
    taken = bytes_taken = 0.0
    for size, files in sizes:
        fitting = min(files, int((max_bytes - together) * partitions / size)) if size else files
        if fitting > 0:
            number += fitting
            together += size * fitting / partitions
            # Of these, the last one has all others beside it.
            if size <= size_ratio * (together - size):
                taken, bytes_taken = number, together
        if fitting < files:
            break
    least = max(min_files, 2) * partitions
    is_enough = taken + others[1] >= least or (taken >= 2 * partitions and bytes_taken > target_bytes)
    return int(taken) if others[1] or is_enough else 0
