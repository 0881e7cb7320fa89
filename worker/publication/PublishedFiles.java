// What leaves a staging branch once it is published. Compiled by Janino, as CommitGuards.java is, so without type
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
import org.apache.iceberg.Table;
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
