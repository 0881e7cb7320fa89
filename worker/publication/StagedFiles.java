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
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;

/** The live data files of a snapshot that have some paths and are not older than a sequence number. */
public class StagedFiles {
    private final List files = new ArrayList();

    public StagedFiles(Table table, String snapshotId, String since, List paths) throws Exception {
        long first = Long.parseLong(since);
        Set wanted = new HashSet(paths);
        List manifests = table.snapshot(Long.parseLong(snapshotId)).dataManifests(table.io());
        for (Iterator each = manifests.iterator(); each.hasNext();) {
            ManifestFile manifest = (ManifestFile) each.next();
            if (manifest.sequenceNumber() < first) {
                continue;
            }
            CloseableIterable entries = (CloseableIterable) ManifestFiles.read(manifest, table.io(), table.specs());
            try {
                for (Iterator found = entries.iterator(); found.hasNext();) {
                    DataFile file = (DataFile) found.next();
                    if (wanted.contains(file.location()) && file.dataSequenceNumber().longValue() >= first) {
                        this.files.add(file.copy());
                    }
                }
            } finally {
                ((Closeable) entries).close();
            }
        }
    }

    public List files() {
        return this.files;
    }
}
