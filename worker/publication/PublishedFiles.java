// What leaves a staging branch once it is published, and how it begins anew. Compiled by Janino, as CommitGuards.java is, so without type
// arguments.

import java.io.Closeable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.CloseableIterable;

/** The data and delete files that a snapshot shows, up to a sequence number. */
public class PublishedFiles {
    private final List dataFiles = new ArrayList();
    private final List deleteFiles = new ArrayList();

    public PublishedFiles(Table table, String snapshotId, String upTo) throws Exception {
        long last = Long.parseLong(upTo);
        Snapshot snapshot = table.snapshot(Long.parseLong(snapshotId));
        for (Iterator each = snapshot.allManifests(table.io()).iterator(); each.hasNext();) {
            ManifestFile manifest = (ManifestFile) each.next();
            if (manifest.minSequenceNumber() > last) {
                continue;
            }
            boolean isOfData = manifest.content().id() == 0;
            CloseableIterable entries = isOfData
                    ? (CloseableIterable) ManifestFiles.read(manifest, table.io(), table.specs())
                    : (CloseableIterable) ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs());
            try {
                for (Iterator found = entries.iterator(); found.hasNext();) {
                    ContentFile file = (ContentFile) found.next();
                    if (file.dataSequenceNumber().longValue() <= last) {
                        (isOfData ? this.dataFiles : this.deleteFiles).add(file.copyWithoutStats());
                    }
                }
            } finally {
                ((Closeable) entries).close();
            }
        }
    }

    public int count() {
        return this.dataFiles.size() + this.deleteFiles.size();
    }

    public void removeBy(RowDelta operation) {
        for (Iterator each = this.dataFiles.iterator(); each.hasNext();) {
            operation.removeRows((DataFile) each.next());
        }
        for (Iterator each = this.deleteFiles.iterator(); each.hasNext();) {
            operation.removeDeletes((DeleteFile) each.next());
        }
    }
}

/**
 * The operations of a table on which a branch begins anew after one of its snapshots, as long as it has the head that
 * was looked at. Of several commits, the first ones are held back, and come to the table with the last.
 */
public class RenewingOperations extends DelegatingOperations {
    private final String branch;
    private final long head;
    private final long first;
    private int heldBack;
    private TableMetadata base = null;
    private TableMetadata renewed = null;
    private boolean isCommitted = false;

    public RenewingOperations(TableOperations operations, String branch, String head, String first, String heldBack) {
        super(operations);
        this.branch = branch;
        this.head = Long.parseLong(head);
        this.first = Long.parseLong(first);
        this.heldBack = Integer.parseInt(heldBack);
    }

    public TableMetadata current() {
        return renewed(this.operations.current());
    }

    public TableMetadata refresh() {
        return renewed(this.operations.refresh());
    }

    private TableMetadata renewed(TableMetadata now) {
        if (this.isCommitted || now == this.base) {
            return this.isCommitted ? now : this.renewed;
        }
        SnapshotRef reference = now.ref(this.branch);
        if (this.base != null || reference == null || reference.snapshotId() != this.head) {
            throw new ValidationException("somebody else committed since the branch was looked at", new Object[0]);
        }
        SnapshotRef anew = SnapshotRef.builderFrom(reference, this.first).build();
        this.base = now;
        this.renewed = TableMetadata.buildFrom(now).setRef(this.branch, anew).build();
        return this.renewed;
    }

    public void commit(TableMetadata from, TableMetadata metadata) {
        if (from != this.renewed) {
            throw new CommitFailedException("the branch is renewed already", new Object[0]);
        }
        if (this.heldBack > 0) {
            this.heldBack--;
            this.renewed = metadata;
            return;
        }
        this.operations.commit(this.base, metadata);
        this.isCommitted = true;
    }
}
