// Compiled by Janino, as CommitGuards.java is, so without type arguments.

import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.HistoryEntry;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifierParser;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.StorageCredential;
import org.apache.iceberg.io.SupportsStorageCredentials;
import org.apache.iceberg.util.JsonUtil;

/** What is asked of tables, each in one call and told in JSON: from Python, a call takes longer than what it is for. */
public class Tables {
    public Table load(Catalog catalog, String identifier) {
        return catalog.loadTable(TableIdentifierParser.fromJson(identifier));
    }

    /** The metadata of a table as it was refreshed last. */
    public String metadata(Table table) {
        return TableMetadataParser.toJson(operations(table).current());
    }

    /** Where a table lies, and writes its metadata if that is elsewhere. */
    public String places(Table table) throws IOException {
        Object elsewhere = table.properties().get("write.metadata.path");
        return told(Arrays.asList(new Object[] {table.location(), elsewhere}));
    }

    /** How a table's files are opened, and what a REST catalog vends, by the beginnings of places that it is for. */
    public String files(Table table) throws IOException {
        FileIO io = table.io();
        Map vended = new LinkedHashMap();
        if (io instanceof SupportsStorageCredentials) {
            for (Iterator each = ((SupportsStorageCredentials) io).credentials().iterator(); each.hasNext();) {
                StorageCredential one = (StorageCredential) each.next();
                vended.put(one.prefix(), one.config());
            }
        }
        Map found = new HashMap();
        found.put("location", table.location());
        found.put("properties", io.properties());
        found.put("vended", vended);
        return told(found);
    }

    /** What a commit looks at before, of a table that is refreshed for it if it is to be. */
    public String state(Table table, String branch, boolean isRefreshed) throws IOException {
        if (isRefreshed) {
            table.refresh();
        }
        TableOperations operations = operations(table);
        TableMetadata now = operations.current();
        List history = now.snapshotLog();
        long last = now.lastUpdatedMillis();
        if (!history.isEmpty()) {
            last = Math.max(last, ((HistoryEntry) history.get(history.size() - 1)).timestampMillis());
        }
        Map found = new HashMap();
        found.put("last_updated_ms", Long.valueOf(last));
        found.put("now_ms", Long.valueOf(System.currentTimeMillis()));
        found.put("is_empty", Boolean.valueOf(now.currentSnapshot() == null));
        found.put("has_branch", Boolean.valueOf(now.ref(branch) != null));
        found.put("last_sequence_number", Long.valueOf(now.lastSequenceNumber()));
        found.put("place", operations.metadataFileLocation("any-file"));
        return told(found);
    }

    /** The snapshot that a branch is at, of a table that is refreshed for it if it is to be; null without a branch. */
    public String head(Table table, String branch, boolean isRefreshed) {
        if (isRefreshed) {
            table.refresh();
        }
        Snapshot head = table.snapshot(branch);
        return head == null ? null : SnapshotParser.toJson(head);
    }

    private static TableOperations operations(Table table) {
        return ((HasTableOperations) table).operations();
    }

    private static String told(Object value) throws IOException {
        return JsonUtil.mapper().writeValueAsString(value);
    }
}
