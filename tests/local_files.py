"""Local files without a process for each: Hadoop runs `chmod` three times for a file that it writes.

That is more than half of what a commit to a small table costs.
"""

from typing import Any

from pyspark.sql import SparkSession

_LOCAL_FILES = """
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
        String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
            + permission.getOtherAction().SYMBOL;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
    }
}
"""


def set_permissions_without_processes(spark: SparkSession) -> None:
    """In the JVM of the session, whose cached file system keeps all else of Hadoop's, such as checksums."""
    jvm: Any = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_LOCAL_FILES)
    (constructor,) = compiler.getClassLoader().loadClass("LocalFiles").getConstructors()
    files = constructor.newInstance(None)
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    files.initialize(jvm.java.net.URI.create("file:///"), settings)
    wrapped = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
    wrapped.setAccessible(True)
    wrapped.set(jvm.org.apache.hadoop.fs.FileSystem.getLocal(settings), files)
