// What of a commit has to run in Java: Iceberg asks in each of its own tries, about the very metadata that it
// is about to build on. Compiled by Janino, as Spark's own generated code is, so without type arguments.

import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotAncestryValidator;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.LocationProvider;

/**
 * Whether the snapshots since the plan leave alone what it names by path. Other files pass: a writer who appends
 * is never in the way. Each snapshot is read once.
 */
public class NothingAddedAgain implements SnapshotAncestryValidator {
    private final Set passed = new HashSet();
    private final Table table;
    private final Set dataFiles;
    private final Set deleteFiles;
    private String addedAgain = null;

    public NothingAddedAgain(Table table, String startingSnapshotId, List dataFiles, List deleteFiles) {
        this.passed.add(Long.valueOf(startingSnapshotId));
        this.table = table;
        this.dataFiles = new HashSet(dataFiles);
        this.deleteFiles = new HashSet(deleteFiles);
    }

    public boolean validate(Iterable ancestors) {
        Set read = new HashSet();
        for (Iterator each = ancestors.iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            if (this.passed.contains(Long.valueOf(snapshot.snapshotId()))) {
                break;
            }
            SnapshotChanges changes = SnapshotChanges.builderFor(this.table).snapshot(snapshot).build();
            if (adds(changes.addedDataFiles(), this.dataFiles)
                    || adds(changes.addedDeleteFiles(), this.deleteFiles)) {
                return false;
            }
            read.add(Long.valueOf(snapshot.snapshotId()));
        }
        this.passed.addAll(read);
        return true;
    }

    private boolean adds(Iterable files, Set paths) {
        for (Iterator each = files.iterator(); each.hasNext();) {
            String path = ((ContentFile) each.next()).location();
            if (paths.contains(path)) {
                this.addedAgain = path;
                return true;
            }
        }
        return false;
    }

    public String errorMessage() {
        return this.addedAgain + " was added again";
    }
}

/** Whether the branch still has the head that was looked at; -1 for an empty table. */
public class HeadUnmoved implements SnapshotAncestryValidator {
    private final long expected;

    public HeadUnmoved(String snapshotId) {
        this.expected = Long.parseLong(snapshotId);
    }

    public boolean validate(Iterable ancestors) {
        Iterator each = ancestors.iterator();
        return (each.hasNext() ? ((Snapshot) each.next()).snapshotId() : -1L) == this.expected;
    }

    public String errorMessage() {
        return "somebody else committed since the branch was looked at";
    }
}

/** The same, and whether another branch still has the snapshot that is published. */
public class StagedUnmoved implements SnapshotAncestryValidator {
    private final HeadUnmoved head;
    private final TableOperations operations;
    private final String branch;
    private final long snapshotId;
    private boolean isStaged = true;

    public StagedUnmoved(TableOperations operations, String head, String branch, String snapshotId) {
        this.operations = operations;
        this.head = new HeadUnmoved(head);
        this.branch = branch;
        this.snapshotId = Long.parseLong(snapshotId);
    }

    public boolean validate(Iterable ancestors) {
        TableMetadata now = this.operations.current();
        Snapshot at = now.ref(this.branch) == null ? null : now.snapshot(now.ref(this.branch).snapshotId());
        // Each once: parents may lead in a circle.
        for (int left = now.snapshots().size(); left > 0 && at != null; left--) {
            if (at.snapshotId() == this.snapshotId) {
                return this.head.validate(ancestors);
            }
            at = at.parentId() == null ? null : now.snapshot(at.parentId().longValue());
        }
        this.isStaged = false;
        return false;
    }

    public String errorMessage() {
        return this.isStaged
                ? this.head.errorMessage()
                : "branch " + this.branch + " has not got snapshot " + this.snapshotId + " any more";
    }
}

/**
 * The operations of a table as long as it writes where it was checked that it may: a table's writer may change that
 * between two tries. They have a given location provider. Whenever Iceberg commits deletion vectors, it asks for one,
 * and loads the class that the table names by then (`write.location-provider.impl`). It then uses none: ours have
 * their places. Rows that were written for one schema, spec and format version are committed to no other, as far as the
 * table was loaded: a REST catalog makes no such comparison.
 */
public class GuardedOperations extends DelegatingOperations {
    private final LocationProvider locations;
    private final String folder;
    private final String layout;

    public GuardedOperations(
            TableOperations operations, LocationProvider locations, String folder, String layout) {
        super(operations);
        this.locations = locations;
        this.folder = folder;
        this.layout = layout;
    }

    public LocationProvider locationProvider() {
        return this.locations;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        metadataFileLocation("any-file");
        String now = base.currentSchemaId() + " " + base.defaultSpecId() + " " + base.formatVersion();
        if (this.layout.length() > 0 && !this.layout.equals(now)) {
            throw new ValidationException("the table's schema, partition spec or format version changed", new Object[0]);
        }
        this.operations.commit(base, metadata);
    }

    public String metadataFileLocation(String fileName) {
        String location = this.operations.metadataFileLocation(fileName);
        if (!location.startsWith(this.folder)) {
            throw new ValidationException("the table keeps its metadata elsewhere by now", new Object[0]);
        }
        return location;
    }

    public TableOperations temp(TableMetadata uncommitted) {
        return new GuardedOperations(
                this.operations.temp(uncommitted), this.locations, this.folder, this.layout);
    }
}
