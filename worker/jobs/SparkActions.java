// What of Iceberg's actions has to run in Java. Compiled by Janino, as CommitGuards.java is, so without type arguments.

import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Predicate;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.CleanableFailure;
import org.apache.iceberg.exceptions.CommitStateUnknownException;

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

/** What an action deletes with that is only to name what it would delete. */
public class DeletesNothing implements Consumer {
    public void accept(Object path) {
    }
}

/**
 * Operations that know whether a commit failed. A catalog's client may repeat a call whose answer was lost, meet its own
 * commit, and say that it failed, or that nobody may commit: an action deletes what it has written after any
 * CleanableFailure, so files that the table has.
 */
public class CertainOperations extends DelegatingOperations {

    public CertainOperations(TableOperations operations) {
        super(operations);
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
}
