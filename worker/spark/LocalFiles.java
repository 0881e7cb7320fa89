// Compiled by Janino, as Shared.java is.

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, without a process for each: it runs `chmod` several times for a file that it writes, which is
 * more than half of what a commit to a small table costs.
 */
public class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.getStickyBit() || pathToFile(path).isDirectory()) { // which may have bits of groups
            super.setPermission(path, permission);
            return;
        }
        String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
    }

    /** Below the file system that all of this JVM share, which keeps all else of Hadoop's, such as checksums. */
    public void takePlace(Configuration settings) throws IOException, ReflectiveOperationException {
        initialize(URI.create("file:///"), settings);
        Field below = FilterFileSystem.class.getDeclaredField("fs");
        below.setAccessible(true);
        below.set(FileSystem.getLocal(settings), this);
    }
}
