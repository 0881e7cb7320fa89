"""A table after its conversion: the same rows, and no equality deletes."""

from __future__ import annotations

from collections.abc import Collection

from conformance.table import DATA, EQUALITY_DELETES, File, Table


def convert(table: Table, visible: Collection[int]) -> bool:
    """Commits what Icestream's conversion leaves, on main; False if no equality deletes are live.

    Each data file that loses rows gets a position delete file of its own in version 2, a deletion vector in a
    file of its own in version 3. It holds what existing files of this data file alone held, and these are
    removed; in version 3 also what those of several data files hold, which stay. Nothing counts that is older
    than the data file; in version 3, its vectors that are older are removed.
    visible: the `id` of each row that readers see.
    """
    visible = set(visible)
    live = table.live(table.current)
    equality = [entry.file for entry in live if entry.file.content == EQUALITY_DELETES]
    if not equality:
        return False
    added: list[File] = []
    removed: list[File] = []
    for data, age in ((entry.file, entry.data_sequence) for entry in live if entry.file.content == DATA):
        naming = [entry for entry in live if data.path in entry.file.positions]
        deletes = [entry.file for entry in naming if entry.data_sequence >= age]
        known = {pos for delete in deletes for pos in delete.positions[data.path]}
        gone = {pos for pos, row in enumerate(data.rows) if row["id"] not in visible}
        assert known <= gone
        if known == gone:
            continue
        of_it = [delete for delete in deletes if set(delete.positions) == {data.path}]
        if table.format_version == 2:
            held = {pos for delete in of_it for pos in delete.positions[data.path]}
            added.append(table.position_deletes({data: sorted(gone - known | held)}))
        else:
            added += table.vectors({data: sorted(gone)})
            of_it += [entry.file for entry in naming if entry.data_sequence < age and entry.file.blob]
        removed += of_it
    table.commit(*added, removed=[*equality, *removed])
    return True
