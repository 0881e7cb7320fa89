// Snapshots that expire by their ids, and nothing else with them: Iceberg's own ExpireSnapshots applies the ages that
// branches and tags have as well, so more snapshots go than are named, and overdue branches and tags. Compiled by
// Janino, as CommitGuards.java is, so without type arguments.

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.MetadataUpdate;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.ValidationException;

/** One commit, on the very metadata that the table was loaded with, or none. It deletes no file. */
public class ExactExpiry {
    private final TableOperations operations;
    private final Set ids = new HashSet();

    public ExactExpiry(Table table, List snapshotIds) {
        this.operations = ((HasTableOperations) table).operations();
        for (Iterator each = snapshotIds.iterator(); each.hasNext();) {
            this.ids.add(Long.valueOf((String) each.next()));
        }
    }

    public void commit() throws Exception {
        TableMetadata base = this.operations.current();
        List changes = new ArrayList();
        for (Iterator each = base.refs().entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            SnapshotRef ref = (SnapshotRef) entry.getValue();
            // Iceberg would drop it.
            if (this.ids.contains(Long.valueOf(ref.snapshotId()))) {
                throw new ValidationException(entry.getKey() + " names a snapshot that is to expire", new Object[0]);
            }
            changes.add(unchanged((String) entry.getKey(), ref));
        }
        TableMetadata without = TableMetadata.buildFrom(base).removeSnapshots(this.ids).build();
        changes.addAll(without.changes());
        send(without, changes);
        this.operations.commit(base, without);
    }

    /** A REST catalog is not told what its client looked at, but that each ref to be set is as it was. */
    private static MetadataUpdate unchanged(String name, SnapshotRef ref) {
        return new MetadataUpdate.SetSnapshotRef(
                name,
                Long.valueOf(ref.snapshotId()),
                ref.type(),
                ref.minSnapshotsToKeep(),
                ref.maxSnapshotAgeMs(),
                ref.maxRefAgeMs());
    }

    /** The builder leaves out what changes nothing. */
    private static void send(TableMetadata metadata, List changes) throws Exception {
        Field field = TableMetadata.class.getDeclaredField("changes");
        field.setAccessible(true);
        field.set(metadata, changes);
    }
}
