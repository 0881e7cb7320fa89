// Snapshots that expire by their ids, and nothing else with them: Iceberg's own ExpireSnapshots applies the ages that
// branches and tags have as well, so more snapshots go than are named, and overdue branches and tags. Compiled by
// Janino, as CommitGuards.java is, so without type arguments.

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.MetadataUpdate;
import org.apache.iceberg.Snapshot;
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
        this.operations.commit(base, without(base, this.ids));
    }

    /** The same metadata without some snapshots, with what a REST catalog needs to be told of its refs. */
    static TableMetadata without(TableMetadata base, Set ids) throws Exception {
        List changes = new ArrayList();
        for (Iterator each = base.refs().entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            SnapshotRef ref = (SnapshotRef) entry.getValue();
            // Iceberg would drop it.
            if (ids.contains(Long.valueOf(ref.snapshotId()))) {
                throw new ValidationException(entry.getKey() + " names a snapshot that is to expire", new Object[0]);
            }
            changes.add(unchanged((String) entry.getKey(), ref));
        }
        TableMetadata without = TableMetadata.buildFrom(base).removeSnapshots(ids).build();
        changes.addAll(without.changes());
        send(without, changes);
        return without;
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

/**
 * A table's operations for Iceberg's own expiry, which then lets just these snapshots go, whatever ages the table's
 * branches and tags have. Others may commit meanwhile, as long as each branch goes on from where it was looked at and
 * nothing names one of the snapshots. A dry run commits nothing, and shows what the table would be.
 */
public class ExactExpiryOperations extends DelegatingOperations {
    private final Set ids = new HashSet();
    private final Map heads = new HashMap();
    private final boolean isDryRun;
    private TableMetadata foretold = null;

    public ExactExpiryOperations(TableOperations operations, List snapshotIds, Boolean isDryRun) {
        super(operations);
        this.isDryRun = isDryRun.booleanValue();
        for (Iterator each = snapshotIds.iterator(); each.hasNext();) {
            this.ids.add(Long.valueOf((String) each.next()));
        }
        for (Iterator each = operations.current().refs().entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            this.heads.put(entry.getKey(), Long.valueOf(((SnapshotRef) entry.getValue()).snapshotId()));
        }
    }

    public TableMetadata current() {
        return this.foretold != null ? this.foretold : this.operations.current();
    }

    /** What the expiry goes by, and commits on: it follows the parents of snapshots to their end. */
    public TableMetadata refresh() {
        if (this.foretold != null) {
            return this.foretold;
        }
        TableMetadata now = this.operations.refresh();
        checkParents(now);
        return now;
    }

    /** Each snapshot is passed once. */
    private static void checkParents(TableMetadata metadata) {
        Set passed = new HashSet();
        for (Iterator each = metadata.snapshots().iterator(); each.hasNext();) {
            Set way = new HashSet();
            Snapshot at = (Snapshot) each.next();
            while (at != null && passed.add(Long.valueOf(at.snapshotId()))) {
                way.add(Long.valueOf(at.snapshotId()));
                at = parentOf(metadata, at);
            }
            if (at != null && way.contains(Long.valueOf(at.snapshotId()))) {
                throw new ValidationException("the parents of snapshots lead in a circle", new Object[0]);
            }
        }
    }

    private static Snapshot parentOf(TableMetadata metadata, Snapshot snapshot) {
        return snapshot.parentId() == null ? null : metadata.snapshot(snapshot.parentId().longValue());
    }

    public void commit(TableMetadata base, TableMetadata ignored) {
        for (Iterator each = base.refs().entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            SnapshotRef ref = (SnapshotRef) entry.getValue();
            Object looked = this.heads.get(entry.getKey());
            if (looked != null && ref.isBranch() && !leadsTo(base, ref.snapshotId(), ((Long) looked).longValue())) {
                throw new ValidationException(entry.getKey() + " was moved since it was looked at", new Object[0]);
            }
        }
        TableMetadata without;
        try {
            without = ExactExpiry.without(base, this.ids);
        } catch (Exception error) {
            throw error instanceof RuntimeException ? (RuntimeException) error : new RuntimeException(error);
        }
        if (this.isDryRun) {
            this.foretold = TableMetadata.buildFrom(without)
                    .discardChanges()
                    .withMetadataLocation(base.metadataFileLocation())
                    .build();
        } else {
            this.operations.commit(base, without);
        }
    }

    private static boolean leadsTo(TableMetadata metadata, long head, long ancestor) {
        Snapshot at = metadata.snapshot(head);
        while (at != null && at.snapshotId() != ancestor) {
            at = parentOf(metadata, at);
        }
        return at != null;
    }
}
