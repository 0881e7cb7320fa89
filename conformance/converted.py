"""A table after its conversion: the same rows, and no equality deletes."""

from __future__ import annotations

from collections.abc import Collection

from conformance.table import DATA, EQUALITY_DELETES, File, Table


def convert(table: Table, visible: Collection[int]) -> bool:
    """Commits what Icestream's conversion leaves, on main; False if no equality deletes are live.

    Each data file that loses rows gets a position delete file of its own in version 2, a deletion vector in a
    file of its own in version 3. It holds what existing files of this data file alone held, and these are
    removed; in version 3 also what those of several data files hold, which stay.
    visible: the `id` of each row that readers see.
    """
    visible = set(visible)
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
        of_it = [delete for delete in deletes if set(delete.positions) == {data.path}]
        if table.format_version == 2:
            held = {pos for delete in of_it for pos in delete.positions[data.path]}
            added.append(table.position_deletes({data: sorted(gone - known | held)}))
        else:
            added += table.vectors({data: sorted(gone)})
        removed += of_it
    table.commit(*added, removed=[*equality, *removed])
    return True
