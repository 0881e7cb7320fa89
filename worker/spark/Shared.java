// What classes of other sources share: each of them knows those of this one. Compiled by Janino, as CommitGuards.java
// is, so without type arguments.

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.Schema;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.util.UUIDUtil;

/** Makes objects of a class with what Python gives to its constructor, in one call. */
public class Maker {
    private final Constructor constructor;

    public Maker(Constructor constructor) {
        this.constructor = constructor;
    }

    public Object make() throws Throwable {
        return with(new Object[] {});
    }

    public Object make(Object a) throws Throwable {
        return with(new Object[] {a});
    }

    public Object make(Object a, Object b) throws Throwable {
        return with(new Object[] {a, b});
    }

    public Object make(Object a, Object b, Object c) throws Throwable {
        return with(new Object[] {a, b, c});
    }

    public Object make(Object a, Object b, Object c, Object d) throws Throwable {
        return with(new Object[] {a, b, c, d});
    }

    public Object make(Object a, Object b, Object c, Object d, Object e) throws Throwable {
        return with(new Object[] {a, b, c, d, e});
    }

    public Object make(Object a, Object b, Object c, Object d, Object e, Object f) throws Throwable {
        return with(new Object[] {a, b, c, d, e, f});
    }

    public Object make(Object a, Object b, Object c, Object d, Object e, Object f, Object g) throws Throwable {
        return with(new Object[] {a, b, c, d, e, f, g});
    }

    private Object with(Object[] arguments) throws Throwable {
        try {
            return this.constructor.newInstance(arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}

/** Rows of a schema as Iceberg's writers take them: not every Parquet file says that 16 bytes are a UUID. */
public class Rows {
    private final Type row;
    private final boolean hasUuids;

    public Rows(Schema schema) {
        this.row = schema.asStruct();
        this.hasUuids = hasUuids(this.row);
    }

    /** The same record. */
    public Object withUuids(Object record) {
        return this.hasUuids ? withUuids(this.row, record) : record;
    }

    private static boolean hasUuids(Type type) {
        if (type.typeId() == Type.TypeID.UUID) {
            return true;
        }
        if (type.isNestedType()) {
            for (Iterator each = type.asNestedType().fields().iterator(); each.hasNext();) {
                if (hasUuids(((Types.NestedField) each.next()).type())) {
                    return true;
                }
            }
        }
        return false;
    }

    private static Object withUuids(Type type, Object value) {
        if (value == null || !hasUuids(type)) {
            return value;
        }
        if (type.isStructType()) {
            StructLike struct = (StructLike) value;
            List fields = type.asStructType().fields();
            for (int at = 0; at < fields.size(); at++) {
                Type of = ((Types.NestedField) fields.get(at)).type();
                if (hasUuids(of)) {
                    struct.set(at, withUuids(of, struct.get(at, Object.class)));
                }
            }
            return struct;
        }
        if (type.isListType()) {
            Type of = type.asListType().elementType();
            List elements = new ArrayList();
            for (Iterator each = ((List) value).iterator(); each.hasNext();) {
                elements.add(withUuids(of, each.next()));
            }
            return elements;
        }
        if (type.isMapType()) {
            Map entries = new LinkedHashMap();
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                entries.put(
                        withUuids(type.asMapType().keyType(), entry.getKey()),
                        withUuids(type.asMapType().valueType(), entry.getValue()));
            }
            return entries;
        }
        if (value instanceof byte[]) {
            return UUIDUtil.convert((byte[]) value);
        }
        return value instanceof ByteBuffer ? UUIDUtil.convert(ByteBuffers.toByteArray((ByteBuffer) value)) : value;
    }
}

/** The operations of a table, but for what a subclass does otherwise. */
public abstract class DelegatingOperations implements TableOperations {
    protected final TableOperations operations;

    protected DelegatingOperations(TableOperations operations) {
        this.operations = operations;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        this.operations.commit(base, metadata);
    }

    public TableMetadata current() {
        return this.operations.current();
    }

    public TableMetadata refresh() {
        return this.operations.refresh();
    }

    public FileIO io() {
        return this.operations.io();
    }

    public EncryptionManager encryption() {
        return this.operations.encryption();
    }

    public String metadataFileLocation(String fileName) {
        return this.operations.metadataFileLocation(fileName);
    }

    public LocationProvider locationProvider() {
        return this.operations.locationProvider();
    }

    public TableOperations temp(TableMetadata uncommitted) {
        return this.operations.temp(uncommitted);
    }

    public long newSnapshotId() {
        return this.operations.newSnapshotId();
    }

    public boolean requireStrictCleanup() {
        return this.operations.requireStrictCleanup();
    }
}
