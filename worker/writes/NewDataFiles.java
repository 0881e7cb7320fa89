// Rows become data files by Iceberg's own writer. Compiled by Janino, as CommitGuards.java is, so without type
// arguments.

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.SortOrderComparators;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.util.PropertyUtil;

/**
 * New data files, as the table says: partition spec, sort order, format, compression, metrics, target size. Rows come
 * in parts, each a Parquet file, which is read by field id. With a sort order, each part has files of its own.
 */
public class NewDataFiles implements Closeable {
    private final Table table;
    private final FileFormat format;
    private final long targetBytes;
    private final long heldBytes;
    private final Comparator order;
    private final GenericFileWriterFactory writers;
    private final Map byPartition = new LinkedHashMap();
    private final Map open = new LinkedHashMap();
    private final List written = new ArrayList();

    /** heldBytes: the writers of all partitions together are closed beyond so many. */
    public NewDataFiles(final Table table, String heldBytes) {
        this.table = table;
        Map properties = table.properties();
        String named = (String) properties.get(TableProperties.DEFAULT_FILE_FORMAT);
        this.format = FileFormat.fromString(named == null ? TableProperties.DEFAULT_FILE_FORMAT_DEFAULT : named);
        this.targetBytes = PropertyUtil.propertyAsLong(
                properties,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT);
        this.heldBytes = Long.parseLong(heldBytes);
        this.order = table.sortOrder().isSorted()
                ? SortOrderComparators.forSchema(table.schema(), table.sortOrder())
                : null;
        this.writers = new GenericFileWriterFactory.Builder(table)
                .dataFileFormat(this.format)
                .dataSchema(table.schema())
                .dataSortOrder(table.sortOrder())
                .build();
    }

    public String fileExtension() {
        return this.format.name().toLowerCase();
    }

    /** Takes the rows of a part; returns how many new data files it takes to write them. */
    public int read(byte[] parquet) throws Exception {
        this.byPartition.clear();
        PartitionKey key = new PartitionKey(this.table.spec(), this.table.schema());
        InternalRecordWrapper wrapper = new InternalRecordWrapper(this.table.schema().asStruct());
        Rows form = new Rows(this.table.schema());
        CloseableIterable rows = FormatModelRegistry
                .readBuilder(FileFormat.PARQUET, Record.class, new InMemoryInputFile(parquet))
                .project(this.table.schema())
                .build();
        try {
            for (Iterator each = rows.iterator(); each.hasNext();) {
                Record row = (Record) form.withUuids(each.next());
                key.partition(wrapper.wrap((StructLike) row));
                List known = (List) this.byPartition.get(key);
                if (known == null) {
                    known = new ArrayList();
                    this.byPartition.put(key.copy(), known);
                }
                known.add(row);
            }
        } finally {
            ((Closeable) rows).close();
        }
        int wanted = 0;
        for (Iterator each = this.byPartition.keySet().iterator(); each.hasNext();) {
            wanted += this.open.containsKey(each.next()) ? 0 : 1;
        }
        return wanted;
    }

    /** Writes the rows of the part that was read last, into as many files at the places given as it takes. */
    public void write(List locations) throws Exception {
        Iterator places = locations.iterator();
        for (Iterator each = this.byPartition.entrySet().iterator(); each.hasNext();) {
            Map.Entry partition = (Map.Entry) each.next();
            List rows = (List) partition.getValue();
            if (this.order != null) {
                sort(rows);
            }
            DataWriter writer = (DataWriter) this.open.get(partition.getKey());
            if (writer == null) {
                writer = this.writers.newDataWriter(
                        this.table.encryption().encrypt(this.table.io().newOutputFile((String) places.next())),
                        this.table.spec(),
                        (StructLike) partition.getKey());
                this.open.put(partition.getKey(), writer);
            }
            for (Iterator row = rows.iterator(); row.hasNext();) {
                writer.write(row.next());
            }
            if (this.order != null || writer.length() >= this.targetBytes) {
                this.open.remove(partition.getKey());
                end(writer);
            }
        }
        this.byPartition.clear();
        long held = 0;
        for (Iterator each = this.open.values().iterator(); each.hasNext();) {
            held += ((DataWriter) each.next()).length();
        }
        if (this.open.size() > 1 && held >= this.heldBytes) {
            endAll();
        }
    }

    private void sort(List rows) {
        final Comparator ofRows = this.order;
        final InternalRecordWrapper left = new InternalRecordWrapper(this.table.schema().asStruct());
        final InternalRecordWrapper right = new InternalRecordWrapper(this.table.schema().asStruct());
        Collections.sort(rows, new Comparator() {
            public int compare(Object one, Object other) {
                return ofRows.compare(left.wrap((StructLike) one), right.wrap((StructLike) other));
            }
        });
    }

    private void end(DataWriter writer) throws Exception {
        writer.close();
        this.written.add(writer.toDataFile());
    }

    private void endAll() throws Exception {
        for (Iterator each = this.open.values().iterator(); each.hasNext();) {
            end((DataWriter) each.next());
            each.remove();
        }
    }

    /** All that was written. */
    public List files() throws Exception {
        endAll();
        return this.written;
    }

    /** Lets go of what is still open, after a failure. */
    public void close() throws IOException {
        IOException failure = null;
        for (Iterator each = this.open.values().iterator(); each.hasNext();) {
            try {
                ((DataWriter) each.next()).close();
            } catch (IOException error) {
                failure = error;
            }
            each.remove();
        }
        if (failure != null) {
            throw failure;
        }
    }
}
