// What of a commit has to run in Java: Iceberg asks in each of its own tries, about the very metadata that it
// is about to build on. Compiled by Janino, as Spark's own generated code is, so without type arguments.

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.LocationProviders;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotAncestryValidator;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.RuntimeIOException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.rest.TableScanResponseParser;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectReader;
import org.apache.iceberg.util.JsonUtil;

/**
 * Whether the snapshots since the plan leave alone what it names by path. Other files pass: a writer who appends
 * is never in the way. Each snapshot is read once.
 */
public class NothingAddedAgain implements SnapshotAncestryValidator {
    private final Set passed = new HashSet();
    private final Table table;
    private final Set dataFiles;
    private final Set deleteFiles;
    private String addedAgain = null;

    public NothingAddedAgain(Table table, String startingSnapshotId, List dataFiles, List deleteFiles) {
        this.passed.add(Long.valueOf(startingSnapshotId));
        this.table = table;
        this.dataFiles = new HashSet(dataFiles);
        this.deleteFiles = new HashSet(deleteFiles);
    }

    public boolean validate(Iterable ancestors) {
        Set read = new HashSet();
        for (Iterator each = ancestors.iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            if (this.passed.contains(Long.valueOf(snapshot.snapshotId()))) {
                break;
            }
            SnapshotChanges changes = SnapshotChanges.builderFor(this.table).snapshot(snapshot).build();
            if (adds(changes.addedDataFiles(), this.dataFiles)
                    || adds(changes.addedDeleteFiles(), this.deleteFiles)) {
                return false;
            }
            read.add(Long.valueOf(snapshot.snapshotId()));
        }
        this.passed.addAll(read);
        return true;
    }

    private boolean adds(Iterable files, Set paths) {
        for (Iterator each = files.iterator(); each.hasNext();) {
            String path = ((ContentFile) each.next()).location();
            if (paths.contains(path)) {
                this.addedAgain = path;
                return true;
            }
        }
        return false;
    }

    public String errorMessage() {
        return this.addedAgain + " was added again";
    }
}

/** Whether the branch still has the head that was looked at; -1 for an empty table. */
public class HeadUnmoved implements SnapshotAncestryValidator {
    private final long expected;

    public HeadUnmoved(String snapshotId) {
        this.expected = Long.parseLong(snapshotId);
    }

    public boolean validate(Iterable ancestors) {
        Iterator each = ancestors.iterator();
        return (each.hasNext() ? ((Snapshot) each.next()).snapshotId() : -1L) == this.expected;
    }

    public String errorMessage() {
        return "somebody else committed since the branch was looked at";
    }
}

/** The same, and whether another branch still has the snapshot that is published. */
public class StagedUnmoved implements SnapshotAncestryValidator {
    private final HeadUnmoved head;
    private final TableOperations operations;
    private final String branch;
    private final long snapshotId;
    private boolean isStaged = true;

    public StagedUnmoved(TableOperations operations, String head, String branch, String snapshotId) {
        this.operations = operations;
        this.head = new HeadUnmoved(head);
        this.branch = branch;
        this.snapshotId = Long.parseLong(snapshotId);
    }

    public boolean validate(Iterable ancestors) {
        TableMetadata now = this.operations.current();
        Snapshot at = now.ref(this.branch) == null ? null : now.snapshot(now.ref(this.branch).snapshotId());
        // Each once: parents may lead in a circle.
        for (int left = now.snapshots().size(); left > 0 && at != null; left--) {
            if (at.snapshotId() == this.snapshotId) {
                return this.head.validate(ancestors);
            }
            at = at.parentId() == null ? null : now.snapshot(at.parentId().longValue());
        }
        this.isStaged = false;
        return false;
    }

    public String errorMessage() {
        return this.isStaged
                ? this.head.errorMessage()
                : "branch " + this.branch + " has not got snapshot " + this.snapshotId + " any more";
    }
}

/**
 * The operations of a table as long as it writes where it was checked that it may: a table's writer may change that
 * between two tries. They have a given location provider. Whenever Iceberg commits deletion vectors, it asks for one,
 * and loads the class that the table names by then (`write.location-provider.impl`). It then uses none: ours have
 * their places. Rows that were written for one schema, spec and format version are committed to no other, as far as the
 * table was loaded: a REST catalog makes no such comparison.
 */
public class GuardedOperations extends DelegatingOperations {
    private final FileIO io;
    private final LocationProvider locations;
    private final String folder;
    private final String layout;

    public GuardedOperations(
            TableOperations operations, FileIO io, LocationProvider locations, String folder, String layout) {
        super(operations);
        this.io = io;
        this.locations = locations;
        this.folder = folder;
        this.layout = layout;
    }

    public FileIO io() {
        return this.io;
    }

    public LocationProvider locationProvider() {
        return this.locations;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        metadataFileLocation("any-file");
        String now = base.currentSchemaId() + " " + base.defaultSpecId() + " " + base.formatVersion();
        if (this.layout.length() > 0 && !this.layout.equals(now)) {
            throw new ValidationException("the table's schema, partition spec or format version changed", new Object[0]);
        }
        this.operations.commit(base, metadata);
    }

    public String metadataFileLocation(String fileName) {
        String location = this.operations.metadataFileLocation(fileName);
        if (!location.startsWith(this.folder)) {
            throw new ValidationException("the table keeps its metadata elsewhere by now", new Object[0]);
        }
        return location;
    }

    public TableOperations temp(TableMetadata uncommitted) {
        return new GuardedOperations(
                this.operations.temp(uncommitted), this.io, this.locations, this.folder, this.layout);
    }
}

/** The same table, by such operations. */
public class GuardedTable extends BaseTable {
    public GuardedTable(BaseTable table, String folder, String layout) {
        this(table, table.io(), folder, layout);
    }

    /** io: by which it reads and writes its own files. Python makes objects by the one constructor that is public. */
    GuardedTable(BaseTable table, FileIO io, String folder, String layout) {
        super(
                new GuardedOperations(
                        table.operations(),
                        io,
                        LocationProviders.locationsFor(table.location(), new HashMap()),
                        folder,
                        layout),
                table.name(),
                table.reporter());
    }
}

/** What a commit changes, given to it as JSON and lists: a call from Python takes longer than all else of it. */
public class Changes {
    private final Map specs;
    private final RowDelta operation;

    /**
     * plan: as row_delta.py tells it. read: files of metadata, one after the other. dataFiles: paths of those that must
     * be live.
     */
    public Changes(
            BaseTable table, String plan, byte[] read, List dataFiles, SnapshotAncestryValidator validator)
            throws IOException {
        Map told = (Map) JsonUtil.mapper().readValue(plan, Map.class);
        FileIO files = new KeptFiles(table.io(), (List) told.get("read"), read);
        Table guarded = new GuardedTable(table, files, (String) told.get("folder"), (String) told.get("layout"));
        String snapshotId = (String) told.get("head");
        this.specs = table.specs();
        this.operation = guarded.newRowDelta();
        this.operation.toBranch((String) told.get("branch"));
        this.operation.validateDataFilesExist(dataFiles);
        this.operation.validateDeletedFiles();
        this.operation.validateWith(validator);
        if (!snapshotId.equals("-1")) {  // of an empty table
            this.operation.validateFromSnapshot(Long.parseLong(snapshotId));
        }
    }

    public void addRows(List files) {
        for (Iterator each = files.iterator(); each.hasNext();) {
            this.operation.addRows((DataFile) each.next());
        }
    }

    public void addDeletes(ObjectReader reader, String files) throws IOException {
        for (Iterator each = parsed(reader, files).iterator(); each.hasNext();) {
            this.operation.addDeletes((DeleteFile) each.next());
        }
    }

    public void removeDeletes(ObjectReader reader, String files) throws IOException {
        for (Iterator each = parsed(reader, files).iterator(); each.hasNext();) {
            this.operation.removeDeletes((DeleteFile) each.next());
        }
    }

    /** The operation, with the properties of its snapshot. condemned: gets the manifests that it would delete. */
    public SnapshotUpdate described(String properties, Queue condemned) throws IOException {
        Map told = (Map) JsonUtil.mapper().readValue(properties, Map.class);
        return new Description(told, condemned).of(this.operation);
    }

    private List parsed(ObjectReader reader, String files) throws IOException {
        return TableScanResponseParser.parseDeleteFiles(reader.readTree(files), this.specs);
    }
}

/** The properties of a snapshot, and what keeps the manifests that Iceberg would delete with it. */
public class Description implements Consumer {
    private final Map properties;
    private final Queue condemned;

    public Description(Map properties, Queue condemned) {
        this.properties = properties;
        this.condemned = condemned;
    }

    public SnapshotUpdate of(SnapshotUpdate operation) {
        for (Iterator each = this.properties.entrySet().iterator(); each.hasNext();) {
            Map.Entry property = (Map.Entry) each.next();
            operation.set((String) property.getKey(), (String) property.getValue());
        }
        return (SnapshotUpdate) operation.deleteWith(this);
    }

    public void accept(Object path) {
        this.condemned.add(path);
    }
}

/**
 * The files of a table, of which a commit reads each once. Iceberg asks for the size of a list of manifests before it
 * reads it, reads a manifest twice to remove files from it, and at last the list that it has just written: each time, a
 * store is waited for. None of these files changes under its name. What is too large to keep is read as ever.
 */
public class KeptFiles implements FileIO {
    private final FileIO io;
    private final Map contents = new ConcurrentHashMap();
    private int room = 16 << 20;

    /** read: of what was read of them before, the place and the size of each. contents: one after the other. */
    public KeptFiles(FileIO io, List read, byte[] contents) {
        this.io = io;
        int start = 0;
        for (Iterator each = read.iterator(); each.hasNext();) {
            List file = (List) each.next();
            int end = start + ((Number) file.get(1)).intValue();
            if (take(end - start) == end - start) {
                keep((String) file.get(0), Arrays.copyOfRange(contents, start, end));
            }
            start = end;
        }
    }

    public InputFile newInputFile(String location) {
        return new KeptInput(this, this.io.newInputFile(location), -1L);
    }

    public InputFile newInputFile(String location, long length) {
        return new KeptInput(this, this.io.newInputFile(location, length), length);
    }

    public OutputFile newOutputFile(String location) {
        return new KeptOutput(this, this.io.newOutputFile(location));
    }

    public void deleteFile(String location) {
        forget(location);
        this.io.deleteFile(location);
    }

    public Map properties() {
        return this.io.properties();
    }

    /**
     * Of a file, or null if it is too large. length: as its manifest list says; -1 if nobody does. Its room is
     * taken before it is read: many are read at a time.
     */
    byte[] read(InputFile file, long length) {
        byte[] content = (byte[]) this.contents.get(file.location());
        if (content != null && length >= 0 && content.length != length) {
            forget(file.location());
            content = null;
        }
        int taken = content == null ? take(length) : -1;
        if (taken < 0) {
            return content;
        }
        boolean isWhole = false;
        try {
            InputStream stream = file.newStream();
            try {
                content = stream.readNBytes(taken + 1);
            } finally {
                stream.close();
            }
            isWhole = length < 0 ? content.length <= taken : content.length == length;
        } catch (IOException error) {
            throw new RuntimeIOException(error);
        } finally {
            give(isWhole ? taken - content.length : taken);
        }
        if (!isWhole) {
            return null;
        }
        keep(file.location(), content);
        return content;
    }

    /** So many bytes, or all that are left for -1; -1 if there are not so many. */
    synchronized int take(long length) {
        if (length > this.room || this.room == 0) {
            return -1;
        }
        int taken = length < 0 ? this.room : (int) length;
        this.room -= taken;
        return taken;
    }

    synchronized void give(int taken) {
        this.room += taken;
    }

    /** What room was taken for. */
    void keep(String location, byte[] content) {
        byte[] before = (byte[]) this.contents.put(location, content);
        give(before == null ? 0 : before.length);
    }

    void forget(String location) {
        byte[] content = (byte[]) this.contents.remove(location);
        give(content == null ? 0 : content.length);
    }
}

class KeptInput implements InputFile {
    private final KeptFiles files;
    private final InputFile file;
    private final long length;

    KeptInput(KeptFiles files, InputFile file, long length) {
        this.files = files;
        this.file = file;
        this.length = length;
    }

    public long getLength() {
        byte[] content = this.files.read(this.file, this.length);
        return content == null ? this.file.getLength() : content.length;
    }

    public SeekableInputStream newStream() {
        byte[] content = this.files.read(this.file, this.length);
        return content == null ? this.file.newStream() : new InMemoryInputFile(location(), content).newStream();
    }

    public String location() {
        return this.file.location();
    }

    public boolean exists() {
        return this.file.exists();
    }
}

class KeptOutput implements OutputFile {
    private final KeptFiles files;
    private final OutputFile file;

    KeptOutput(KeptFiles files, OutputFile file) {
        this.files = files;
        this.file = file;
    }

    public PositionOutputStream create() {
        return new KeptOutputStream(this.files, location(), this.file.create());
    }

    public PositionOutputStream createOrOverwrite() {
        return new KeptOutputStream(this.files, location(), this.file.createOrOverwrite());
    }

    public String location() {
        return this.file.location();
    }

    public InputFile toInputFile() {
        return this.files.newInputFile(location());
    }
}

class KeptOutputStream extends PositionOutputStream {
    private final KeptFiles files;
    private final String location;
    private final PositionOutputStream stream;
    private ByteArrayOutputStream content = new ByteArrayOutputStream();

    KeptOutputStream(KeptFiles files, String location, PositionOutputStream stream) {
        this.files = files;
        this.location = location;
        this.stream = stream;
        files.forget(location);
    }

    public long getPos() throws IOException {
        return this.stream.getPos();
    }

    public long storedLength() throws IOException {
        return this.stream.storedLength();
    }

    public void write(int value) throws IOException {
        write(new byte[] {(byte) value}, 0, 1);
    }

    public void write(byte[] bytes, int from, int count) throws IOException {
        this.stream.write(bytes, from, count);
        if (this.content != null && this.files.take(count) == count) {
            this.content.write(bytes, from, count);
        } else {
            drop();
        }
    }

    public void flush() throws IOException {
        this.stream.flush();
    }

    public void close() throws IOException {
        try {
            this.stream.close();
            if (this.content != null) {
                this.files.keep(this.location, this.content.toByteArray());
                this.content = null;
            }
        } finally {
            drop();
        }
    }

    private void drop() {
        if (this.content != null) {
            this.files.give(this.content.size());
            this.content = null;
        }
    }
}
