// The data files that a publication adds, with all that their manifests say of them. Compiled by Janino, as
// CommitGuards.java is, so without type arguments.

import java.io.Closeable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;

/**
 * The data files that some snapshots show, have some paths and are not older than a sequence number: each once. One
 * snapshot's own manifests may be unread, as they can't be or have none of these files.
 */
public class StagedFiles {
    private final Table table;
    private final long since;
    private final String unread;
    private final Set missing;
    private final List files = new ArrayList();

    public StagedFiles(Table table, String since, List snapshotIds, String unread, List paths) throws Exception {
        this.table = table;
        this.unread = unread;
        this.since = Long.parseLong(since);
        this.missing = new HashSet(paths);
        for (Iterator each = snapshotIds.iterator(); each.hasNext();) {
            Snapshot snapshot = table.snapshot(Long.parseLong((String) each.next()));
            for (Iterator manifests = snapshot.dataManifests(table.io()).iterator(); manifests.hasNext();) {
                read((ManifestFile) manifests.next());
            }
        }
        if (!this.missing.isEmpty()) {
            throw new IllegalStateException("no manifest names " + this.missing.iterator().next());
        }
    }

    private void read(ManifestFile manifest) throws Exception {
        boolean isUnread = String.valueOf(manifest.snapshotId()).equals(this.unread);
        if (isUnread || manifest.sequenceNumber() < this.since || this.missing.isEmpty()) {
            return;
        }
        CloseableIterable entries =
                (CloseableIterable) ManifestFiles.read(manifest, this.table.io(), this.table.specs());
        try {
            for (Iterator found = entries.iterator(); found.hasNext();) {
                DataFile file = (DataFile) found.next();
                if (file.dataSequenceNumber().longValue() >= this.since && this.missing.remove(file.location())) {
                    this.files.add(file.copy());
                }
            }
        } finally {
            ((Closeable) entries).close();
        }
    }

    public List files() {
        return this.files;
    }
}
