"""A table after its conversion: the same rows, and no equality deletes."""

from __future__ import annotations

from collections.abc import Collection

from conformance.table import DATA, EQUALITY_DELETES, File, Table


def convert(table: Table, visible: Collection[int]) -> bool:
    """Commits what Icestream's conversion leaves, on main; False if no equality deletes are live.

    Version 2 gets a position delete file for each data file, with the positions that none had. Version 3 gets
    a deletion vector for each in a file of its own, with all positions, instead of what there was.
    visible: the `id` of each row that readers see.
    """
    live = table.live(table.current)
    equality = [file for file in live if file.content == EQUALITY_DELETES]
    if not equality:
        return False
    deletes = [file for file in live if file.positions]
    added: list[File] = []
    removed: list[File] = []
    for data in (file for file in live if file.content == DATA):
        known = {pos for delete in deletes for pos in delete.positions.get(data.path, ())}
        gone = {pos for pos, row in enumerate(data.rows) if row["id"] not in visible}
        assert known <= gone
        if known == gone:
            continue
        if table.format_version == 2:
            added.append(table.position_deletes({data: sorted(gone - known)}))
        else:
            added += table.vectors({data: sorted(gone)})
            removed += [delete for delete in deletes if set(delete.positions) == {data.path}]
    table.commit(*added, removed=[*equality, *removed])
    return True
