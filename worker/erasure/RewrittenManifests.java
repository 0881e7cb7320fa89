// Manifests are written anew without what they tell of removed files. Compiled by Janino, as CommitGuards.java is, so
// without type arguments.

import java.io.Closeable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;

/** Whether a manifest names data files that its snapshot has removed: with the bounds of what was in them. */
public class NamesRemovedFiles implements Predicate {
    public boolean test(Object manifest) {
        ManifestFile file = (ManifestFile) manifest;
        return file.content() == ManifestContent.DATA
                && (file.deletedFilesCount() == null || file.deletedFilesCount().intValue() > 0);
    }
}

/**
 * Delete manifests that name removed files, and their successors with what is live. Iceberg's own operation rewrites
 * those of data files alone.
 */
public class DeleteManifests {
    private final Table table;
    private final Map snapshotIds = new HashMap();
    private final List manifests = new ArrayList();

    /** names: of the live delete files of the snapshot, as below; snapshotIds: of which snapshot each is. */
    public DeleteManifests(Table table, String snapshotId, List names, List snapshotIds) {
        this.table = table;
        Iterator ids = snapshotIds.iterator();
        for (Iterator each = names.iterator(); each.hasNext();) {
            this.snapshotIds.put(each.next(), Long.valueOf((String) ids.next()));
        }
        List all = table.snapshot(Long.parseLong(snapshotId)).deleteManifests(table.io());
        for (Iterator each = all.iterator(); each.hasNext();) {
            ManifestFile manifest = (ManifestFile) each.next();
            if (manifest.deletedFilesCount() == null || manifest.deletedFilesCount().intValue() > 0) {
                this.manifests.add(manifest);
            }
        }
    }

    public List manifests() {
        return this.manifests;
    }

    /** Null if nothing in it is live. */
    public ManifestFile write(ManifestFile old, String location) throws Exception {
        PartitionSpec spec = (PartitionSpec) this.table.specs().get(Integer.valueOf(old.partitionSpecId()));
        int version = ((BaseTable) this.table).operations().current().formatVersion();
        ManifestWriter writer = null;
        CloseableIterable files = (CloseableIterable) ManifestFiles.readDeleteManifest(
                old, this.table.io(), this.table.specs());
        try {
            for (Iterator each = files.iterator(); each.hasNext();) {
                DeleteFile file = (DeleteFile) each.next();
                Long snapshotId = (Long) this.snapshotIds.get(
                        file.location() + " " + (file.contentOffset() == null ? -1L : file.contentOffset()));
                if (snapshotId == null) {
                    throw new IllegalStateException("another delete file is in " + old.path());
                }
                if (writer == null) {
                    writer = ManifestFiles.writeDeleteManifest(
                            version, spec, this.table.io().newOutputFile(location), (Long) null);
                }
                writer.existing(
                        file, snapshotId.longValue(), file.dataSequenceNumber().longValue(), file.fileSequenceNumber());
            }
        } finally {
            ((Closeable) files).close();
            if (writer != null) {
                writer.close();
            }
        }
        return writer == null ? null : writer.toManifestFile();
    }
}

/** Each manifest has one successor. */
public class ByManifest implements Function {
    public Object apply(Object file) {
        return ((DataFile) file).manifestLocation();
    }
}
