// Compiled by Janino, as CommitGuards.java is, so without type arguments.

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.util.JsonUtil;

/** What Iceberg's own reader shows of a table, in one call: one for each row would cost a second for thousands. */
public class TableReader {
    private final Table table;

    public TableReader(Table table) {
        this.table = table;
    }

    /** The rows of a snapshot, or of the table if it is empty: an array of arrays of texts, columns in order. */
    public String rows(String snapshotId) throws IOException {
        IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(this.table);
        if (!snapshotId.isEmpty()) {
            scan = scan.useSnapshot(Long.parseLong(snapshotId));
        }
        int columns = this.table.schema().columns().size();
        List rows = new ArrayList();
        CloseableIterable records = scan.build();
        try {
            Iterator each = records.iterator();
            while (each.hasNext()) {
                Record record = (Record) each.next();
                List values = new ArrayList();
                // Behind these, a record may have columns that the reader has added for itself, such as its position.
                for (int at = 0; at < columns; at++) {
                    Object value = record.get(at);
                    values.add(value == null ? null : value.toString());
                }
                rows.add(values);
            }
        } finally {
            records.close();
        }
        return JsonUtil.mapper().writeValueAsString(rows);
    }

    /** Live delete files of the head: an array of their content and format. */
    public String deleteFiles() throws IOException {
        List files = new ArrayList();
        Snapshot head = this.table.currentSnapshot();
        if (head != null) {
            Iterator manifests = head.deleteManifests(this.table.io()).iterator();
            while (manifests.hasNext()) {
                ManifestFile manifest = (ManifestFile) manifests.next();
                ManifestReader reader =
                        ManifestFiles.readDeleteManifest(manifest, this.table.io(), this.table.specs());
                CloseableIterator each = reader.iterator();
                try {
                    while (each.hasNext()) {
                        DeleteFile file = (DeleteFile) each.next();
                        List told = new ArrayList();
                        told.add(file.content().name());
                        told.add(file.format().name());
                        files.add(told);
                    }
                } finally {
                    each.close();
                    reader.close();
                }
            }
        }
        return JsonUtil.mapper().writeValueAsString(files);
    }
}
