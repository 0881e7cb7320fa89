// What rewritings of files need in Java. Compiled by Janino, as CommitGuards.java is, so without type arguments.

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.BaseFileScanTask;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotAncestryValidator;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.actions.BinPackRewriteFilePlanner;
import org.apache.iceberg.actions.BinPackRewritePositionDeletePlanner;
import org.apache.iceberg.actions.RewriteFileGroup;
import org.apache.iceberg.actions.RewriteGroupBase;
import org.apache.iceberg.actions.RewritePositionDeletesGroup;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.FilterIterator;
import org.apache.iceberg.io.LocationProvider;

/**
 * A table at one of its snapshots, of which Iceberg's action sees just some data files. What the action would commit is
 * collected, for the job to commit it. Spark's tasks get its properties and its location provider, so these are ours:
 * what the table names as classes or places is not among them. Equality deletes that are newer than the data files it
 * writes stay out of sight, since they apply to these.
 */
public class RewritableTable extends BaseTable {
    private final Map properties;
    private final LocationProvider locations;
    private final Snapshot snapshot;
    private final Set paths;
    private final boolean hasOnlyThese;
    private final long sequenceNumber;
    private final CollectedRewrite rewrite = new CollectedRewrite();

    /**
     * paths: of data files, which are all that there are, or those that are left out. sequenceNumber: of data files that
     * are written.
     */
    public RewritableTable(
            BaseTable table,
            Map properties,
            LocationProvider locations,
            String snapshotId,
            List paths,
            Boolean only,
            String sequenceNumber) {
        super(table.operations(), table.name(), table.reporter());
        this.properties = properties;
        this.locations = locations;
        this.snapshot = table.snapshot(Long.parseLong(snapshotId));
        this.paths = new HashSet(paths);
        this.hasOnlyThese = only.booleanValue();
        this.sequenceNumber = Long.parseLong(sequenceNumber);
    }

    public Map properties() {
        return this.properties;
    }

    public LocationProvider locationProvider() {
        return this.locations;
    }

    public Snapshot currentSnapshot() {
        return this.snapshot;
    }

    /** Of whatever branch. */
    public Snapshot snapshot(String name) {
        return this.snapshot;
    }

    public RewriteFiles newRewrite() {
        return this.rewrite.operation();
    }

    public CollectedRewrite rewrite() {
        return this.rewrite;
    }

    public TableScan newScan() {
        return narrowed(super.newScan());
    }

    private TableScan narrowed(final TableScan scan) {
        return (TableScan) Proxy.newProxyInstance(
                TableScan.class.getClassLoader(), new Class[] {TableScan.class}, new InvocationHandler() {
                    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
                        Object answer;
                        try {
                            answer = method.invoke(scan, arguments);
                        } catch (InvocationTargetException error) {
                            throw error.getCause();
                        }
                        if (answer instanceof TableScan) {
                            return narrowed((TableScan) answer);
                        }
                        return method.getName().equals("planFiles") ? seen((CloseableIterable) answer) : answer;
                    }
                });
    }

    private CloseableIterable seen(final CloseableIterable tasks) {
        return new CloseableIterable() {
            public CloseableIterator iterator() {
                final CloseableIterator seen = new FilterIterator(tasks.iterator()) {
                    protected boolean shouldKeep(Object task) {
                        return isSeen(((FileScanTask) task).file().location());
                    }
                };
                return new CloseableIterator() {
                    public boolean hasNext() {
                        return seen.hasNext();
                    }

                    public Object next() {
                        return withoutNewerDeletes((FileScanTask) seen.next());
                    }

                    public void close() throws IOException {
                        seen.close();
                    }
                };
            }

            public void close() throws IOException {
                tasks.close();
            }
        };
    }

    private FileScanTask withoutNewerDeletes(FileScanTask task) {
        List deletes = new ArrayList();
        for (Iterator each = task.deletes().iterator(); each.hasNext();) {
            DeleteFile file = (DeleteFile) each.next();
            if (file.content() != FileContent.EQUALITY_DELETES
                    || file.dataSequenceNumber().longValue() <= this.sequenceNumber) {
                deletes.add(file);
            }
        }
        if (deletes.size() == task.deletes().size()) {
            return task;
        }
        return new BaseFileScanTask(
                (DataFile) task.file(),
                (DeleteFile[]) deletes.toArray(new DeleteFile[0]),
                SchemaParser.toJson(task.schema()),
                PartitionSpecParser.toJson(task.spec()),
                ResidualEvaluator.unpartitioned(task.residual()));
    }

    private boolean isSeen(String path) {
        return this.paths.contains(path) == this.hasOnlyThese;
    }
}

/** What Iceberg's action would commit: data files, and deletes that are of no use without them. */
public class CollectedRewrite implements InvocationHandler {
    private final List removed = new ArrayList();
    private final List added = new ArrayList();
    private final Map sequenceNumbers = new HashMap();

    RewriteFiles operation() {
        return (RewriteFiles) Proxy.newProxyInstance(
                RewriteFiles.class.getClassLoader(), new Class[] {RewriteFiles.class}, this);
    }

    public Object invoke(Object proxy, Method method, Object[] arguments) {
        String name = method.getName();
        if (name.equals("deleteFile")) {
            this.removed.add(arguments[0]);
        } else if (name.equals("addFile")) {
            this.added.add(arguments[0]);
            if (arguments.length > 1) {
                this.sequenceNumbers.put(((ContentFile) arguments[0]).location(), arguments[1]);
            }
        } else if (name.equals("commit")) {
            return null;
        }
        // The job says itself from which snapshot and to which branch.
        return proxy;
    }

    public List added() {
        return this.added;
    }

    public List removed() {
        return this.removed;
    }

    /** The same files in an operation that can be committed. */
    public RewriteFiles addTo(RewriteFiles operation) {
        for (Iterator each = this.removed.iterator(); each.hasNext();) {
            Object file = each.next();
            if (file instanceof DataFile) {
                operation.deleteFile((DataFile) file);
            } else {
                operation.deleteFile((DeleteFile) file);
            }
        }
        for (Iterator each = this.added.iterator(); each.hasNext();) {
            Object file = each.next();
            if (file instanceof DataFile) {
                operation.addFile((DataFile) file);
            } else {
                Long number = (Long) this.sequenceNumbers.get(((DeleteFile) file).location());
                operation.addFile((DeleteFile) file, number.longValue());
            }
        }
        return operation;
    }
}

/** Groups of files that one of Iceberg's planners would rewrite, each of one partition. */
abstract class PlannedFiles {
    private final List groups = new ArrayList();

    void add(RewriteGroupBase group, Iterable files) {
        List paths = new ArrayList();
        for (Iterator each = files.iterator(); each.hasNext();) {
            paths.add(((ContentFile) each.next()).location());
        }
        Map one = new HashMap();
        one.put("paths", paths);
        one.put("size_bytes", Long.valueOf(group.inputFilesSizeInBytes()));
        one.put("expected", Integer.valueOf(group.expectedOutputFiles()));
        this.groups.add(one);
    }

    public List groups() {
        return this.groups;
    }
}

public class PlannedDataFiles extends PlannedFiles {
    public PlannedDataFiles(Table table, String snapshotId, Map options) {
        BinPackRewriteFilePlanner planner =
                new BinPackRewriteFilePlanner(table, Expressions.alwaysTrue(), Long.valueOf(snapshotId), true);
        planner.init(options);
        for (Iterator each = planner.plan().groups().iterator(); each.hasNext();) {
            RewriteFileGroup group = (RewriteFileGroup) each.next();
            add(group, group.rewrittenFiles());
        }
    }
}

/** Of the snapshot that the table is at. */
public class PlannedPositionDeletes extends PlannedFiles {
    public PlannedPositionDeletes(Table table, String snapshotId, Map options) {
        BinPackRewritePositionDeletePlanner planner =
                new BinPackRewritePositionDeletePlanner(table, Expressions.alwaysTrue(), true);
        planner.init(options);
        for (Iterator each = planner.plan().groups().iterator(); each.hasNext();) {
            RewritePositionDeletesGroup group = (RewritePositionDeletesGroup) each.next();
            add(group, group.rewrittenDeleteFiles());
        }
    }
}

/**
 * Whether equality deletes stay that are newer than new data files and apply to them, though the data files that are
 * older than they are replaced: those that came since a snapshot, and the oldest that it has. Iceberg drops deletes that
 * are older than all data files, and does not count those that it adds (apache/iceberg#10962): one must be left.
 * And whether nobody has added again what is replaced: Iceberg removes by paths, and would take both.
 */
public class NewDeletesStay implements SnapshotAncestryValidator {
    private final Table table;
    private final long startingSnapshotId;
    private final long oldest;
    private final Set replaced;
    private final SnapshotAncestryValidator nothingAddedAgain;
    private String why;

    /** oldest: the sequence number of a delete, or the highest long. */
    public NewDeletesStay(
            Table table,
            String startingSnapshotId,
            String oldest,
            List replaced,
            SnapshotAncestryValidator nothingAddedAgain) {
        this.table = table;
        this.startingSnapshotId = Long.parseLong(startingSnapshotId);
        this.oldest = Long.parseLong(oldest);
        this.replaced = new HashSet(replaced);
        this.nothingAddedAgain = nothingAddedAgain;
    }

    public boolean validate(Iterable ancestors) {
        if (!this.nothingAddedAgain.validate(ancestors)) {
            this.why = this.nothingAddedAgain.errorMessage();
            return false;
        }
        this.why = "equality deletes came meanwhile, which Iceberg would drop with the last data file that is older";
        Snapshot head = null;
        long oldest = this.oldest;
        for (Iterator each = ancestors.iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            head = head == null ? snapshot : head;
            if (snapshot.snapshotId() == this.startingSnapshotId) {
                break;
            }
            SnapshotChanges changes = SnapshotChanges.builderFor(this.table).snapshot(snapshot).build();
            for (Iterator files = changes.addedDeleteFiles().iterator(); files.hasNext();) {
                if (((DeleteFile) files.next()).content() == FileContent.EQUALITY_DELETES) {
                    oldest = Math.min(oldest, snapshot.sequenceNumber());
                }
            }
        }
        return oldest == Long.MAX_VALUE || hasOlderDataFile(head, oldest);
    }

    private boolean hasOlderDataFile(Snapshot head, long sequenceNumber) {
        for (Iterator each = head.dataManifests(this.table.io()).iterator(); each.hasNext();) {
            ManifestFile manifest = (ManifestFile) each.next();
            if (manifest.minSequenceNumber() <= sequenceNumber && hasOlderDataFile(manifest, sequenceNumber)) {
                return true;
            }
        }
        return false;
    }

    private boolean hasOlderDataFile(ManifestFile manifest, long sequenceNumber) {
        CloseableIterator files = ManifestFiles.read(manifest, this.table.io(), this.table.specs()).iterator();
        try {
            while (files.hasNext()) {
                DataFile file = (DataFile) files.next();
                if (file.dataSequenceNumber().longValue() <= sequenceNumber
                        && !this.replaced.contains(file.location())) {
                    return true;
                }
            }
            return false;
        } finally {
            try {
                files.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    public String errorMessage() {
        return this.why;
    }
}
