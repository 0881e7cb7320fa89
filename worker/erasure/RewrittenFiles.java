// Data files are written anew without some of their rows, by Iceberg's own reader and writer. Compiled by Janino, as
// CommitGuards.java is, so without type arguments.

import java.io.Closeable;
import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.iceberg.BaseFileScanTask;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.IdentityPartitionConverters;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.formats.ReadBuilder;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.util.PartitionUtil;

/**
 * The live data files of a snapshot that have some paths, and their successors: of the same partition, spec, format
 * and sort order, with the rows that are left in their order. In format version 3 these keep their ids and the numbers
 * of their last changes.
 */
public class RewrittenFiles {
    private final Table table;
    private final List files = new ArrayList();

    public RewrittenFiles(Table table, String snapshotId, List paths) throws Exception {
        this.table = table;
        Set wanted = new HashSet(paths);
        List manifests = table.snapshot(Long.parseLong(snapshotId)).dataManifests(table.io());
        for (Iterator each = manifests.iterator(); each.hasNext();) {
            CloseableIterable entries =
                    (CloseableIterable) ManifestFiles.read((ManifestFile) each.next(), table.io(), table.specs());
            try {
                for (Iterator files = entries.iterator(); files.hasNext();) {
                    DataFile file = (DataFile) files.next();
                    if (wanted.contains(file.location())) {
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

    /** dropped: the positions of rows that are left away, ascending, 8 bytes each. */
    public DataFile write(DataFile old, String location, byte[] dropped) throws Exception {
        LongBuffer positions = ByteBuffer.wrap(dropped).asLongBuffer();
        PartitionSpec spec = (PartitionSpec) this.table.specs().get(Integer.valueOf(old.specId()));
        Schema schema = this.table.schema();
        if (old.firstRowId() != null) {
            schema = MetadataColumns.schemaWithRowLineage(schema);
        }
        SortOrder order = old.sortOrderId() == null
                ? null
                : (SortOrder) this.table.sortOrders().get(old.sortOrderId());
        DataWriter writer = new GenericFileWriterFactory.Builder(this.table)
                .dataFileFormat(old.format())
                .dataSchema(schema)
                .dataSortOrder(order)
                .build()
                .newDataWriter(
                        this.table.encryption().encrypt(this.table.io().newOutputFile(location)),
                        spec,
                        old.partition());
        try {
            Rows form = new Rows(schema);
            CloseableIterable rows = rows(old, spec, schema);
            try {
                long position = 0;
                long next = positions.hasRemaining() ? positions.get() : -1;
                for (Iterator each = rows.iterator(); each.hasNext(); position++) {
                    Object row = each.next();
                    if (position == next) {
                        next = positions.hasRemaining() ? positions.get() : -1;
                    } else {
                        writer.write(form.withUuids(row));
                    }
                }
                if (position != old.recordCount() || next != -1) {
                    throw new IllegalStateException(old.location() + " has not the rows that its manifest says");
                }
            } finally {
                ((Closeable) rows).close();
            }
        } finally {
            writer.close();
        }
        return writer.toDataFile();
    }

    private CloseableIterable rows(DataFile old, PartitionSpec spec, Schema schema) {
        BaseFileScanTask task = new BaseFileScanTask(
                old,
                new DeleteFile[0],
                SchemaParser.toJson(this.table.schema()),
                PartitionSpecParser.toJson(spec),
                ResidualEvaluator.unpartitioned(Expressions.alwaysTrue()));
        Map constants = PartitionUtil.constantsMap(task, new BiFunction() {
            public Object apply(Object type, Object value) {
                return IdentityPartitionConverters.convertConstant((Type) type, value);
            }
        });
        ReadBuilder builder = FormatModelRegistry
                .readBuilder(old.format(), Record.class, this.table.io().newInputFile(old.location()))
                .project(schema)
                .idToConstant(constants);
        String mapping = (String) this.table.properties().get(TableProperties.DEFAULT_NAME_MAPPING);
        if (mapping != null) {
            builder = builder.withNameMapping(NameMappingParser.fromJson(mapping));
        }
        return builder.build();
    }
}
