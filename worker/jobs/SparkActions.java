// What of Iceberg's actions has to run in Java. Compiled by Janino, as CommitGuards.java is, so without type arguments.

import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CleanableFailure;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/** Whether a manifest is one of those that are to be written anew. */
public class IsChosen implements Predicate {
    private final Set paths;

    public IsChosen(List paths) {
        this.paths = new HashSet(paths);
    }

    public boolean test(Object manifest) {
        return this.paths.contains(((ManifestFile) manifest).path());
    }
}

/**
 * Operations that know whether a commit failed. A catalog's client may repeat a call whose answer was lost, meet its own
 * commit, and say that it failed, or that nobody may commit: an action deletes what it has written after any
 * CleanableFailure, so files that the table has.
 */
public class CertainOperations implements TableOperations {
    private final TableOperations operations;

    public CertainOperations(TableOperations operations) {
        this.operations = operations;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        try {
            this.operations.commit(base, metadata);
        } catch (RuntimeException failed) {
            if (!(failed instanceof CleanableFailure) || !isThere(base, metadata)) {
                throw failed;
            }
        }
    }

    private boolean isThere(TableMetadata base, TableMetadata metadata) {
        TableMetadata now;
        try {
            now = this.operations.refresh();
        } catch (RuntimeException error) {
            throw new CommitStateUnknownException(error);
        }
        for (Iterator each = metadata.snapshots().iterator(); each.hasNext();) {
            long id = ((Snapshot) each.next()).snapshotId();
            if (base.snapshot(id) == null && now.snapshot(id) != null) {
                return true;
            }
        }
        return false;
    }

    public TableMetadata current() {
        return this.operations.current();
    }

    public TableMetadata refresh() {
        return this.operations.refresh();
    }

    public FileIO io() {
        return this.operations.io();
    }

    public EncryptionManager encryption() {
        return this.operations.encryption();
    }

    public String metadataFileLocation(String fileName) {
        return this.operations.metadataFileLocation(fileName);
    }

    public LocationProvider locationProvider() {
        return this.operations.locationProvider();
    }

    public TableOperations temp(TableMetadata uncommitted) {
        return this.operations.temp(uncommitted);
    }

    public long newSnapshotId() {
        return this.operations.newSnapshotId();
    }

    public boolean requireStrictCleanup() {
        return this.operations.requireStrictCleanup();
    }
}
