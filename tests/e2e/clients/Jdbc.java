import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.*;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;

/** pgjdbc: a parameter of each type, portions of rows, blocks, metadata. Run: java -cp postgresql.jar Jdbc.java HOST:PORT */
public class Jdbc {
    static void check(Object got, Object wanted) {
        if (!(got == null ? wanted == null : got.equals(wanted))) {
            throw new AssertionError(got + " instead of " + wanted);
        }
    }

    static void values(Connection c, String type, String given, Object... values) throws SQLException {
        try (Statement s = c.createStatement()) {
            s.execute("CREATE TABLE v (k int PRIMARY KEY, a " + type + ")");
        }
        try (PreparedStatement in = c.prepareStatement("INSERT INTO v VALUES (?, " + given + ")");
             PreparedStatement out = c.prepareStatement("SELECT a FROM v WHERE k = ?")) {
            // Beyond the prepare threshold statements are named and results binary.
            for (int round = 0; round < 7; round++) {
                for (int i = 0; i < values.length; i++) {
                    int k = round * 100 + i;
                    in.setInt(1, k);
                    in.setObject(2, values[i]);
                    check(in.executeUpdate(), 1);
                    out.setInt(1, k);
                    try (ResultSet rows = out.executeQuery()) {
                        check(rows.next(), true);
                        Object got = values[i] instanceof byte[] ? rows.getBytes(1)
                            : rows.getObject(1, values[i].getClass());
                        if (values[i] instanceof BigDecimal) {
                            check(((BigDecimal) got).compareTo((BigDecimal) values[i]), 0);
                        } else if (values[i] instanceof byte[]) {
                            check(java.util.Arrays.equals((byte[]) got, (byte[]) values[i]), true);
                        } else {
                            check(got, values[i]);
                        }
                    }
                }
            }
        }
        try (Statement s = c.createStatement()) {
            s.execute("DROP TABLE v");
        }
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "test");
        try (Connection c = DriverManager.getConnection("jdbc:postgresql://" + args[0] + "/clink", properties)) {
            values(c, "smallint", "?", (short) -5, (short) 7);
            values(c, "int", "?", Integer.MIN_VALUE, 7);
            values(c, "bigint", "?", Long.MAX_VALUE, -1L);
            values(c, "double precision", "?", 0.1, 1e300);
            values(c, "numeric(12,2)", "?", new BigDecimal("12345.67"), new BigDecimal("-0.01"));
            values(c, "text", "?", "é €\n\"'\\", "");
            values(c, "boolean", "?", true, false);
            values(c, "bytea", "?", new byte[] {0, -1, 39});
            values(c, "date", "?", java.time.LocalDate.of(2020, 2, 29));
            values(c, "time", "?", java.time.LocalTime.of(23, 59, 59));
            values(c, "timestamp", "?", java.time.LocalDateTime.of(1969, 12, 31, 23, 59, 59, 999999000));
            values(c, "timestamptz", "?", java.time.OffsetDateTime.of(2013, 1, 1, 5, 0, 0, 500000000, java.time.ZoneOffset.UTC));
            values(c, "real", "?", 1.5f, -0.25f);
            values(c, "varchar(10)", "?", "abc");
            values(c, "interval", "?", new PGInterval(0, 1, -2, 3, 4, 5.25));
            PGobject document = new PGobject();
            document.setType("jsonb");
            document.setValue("{\"a\": [1, null], \"b\": \"x\"}");
            values(c, "jsonb", "?", document);
            try (Statement s = c.createStatement()) {
                s.execute("CREATE TABLE arrays (k int PRIMARY KEY, n int[], s text[])");
            }
            try (PreparedStatement in = c.prepareStatement("INSERT INTO arrays VALUES (1, ?, ?) RETURNING n, s")) {
                for (int round = 0; round < 7; round++) {
                    in.setArray(1, c.createArrayOf("int4", new Integer[] {1, null, 3}));
                    in.setArray(2, c.createArrayOf("text", new String[] {"a b", "q\"\\", ""}));
                    try (ResultSet rows = in.executeQuery()) {
                        check(rows.next(), true);
                        check(java.util.Arrays.asList((Object[]) rows.getArray(1).getArray()).toString(), "[1, null, 3]");
                        check(java.util.Arrays.asList((Object[]) rows.getArray(2).getArray()).toString(), "[a b, q\"\\, ]");
                    }
                    try (Statement s = c.createStatement()) {
                        s.execute("DELETE FROM arrays");
                    }
                }
            }
            // NULL without a type, in text and then in binary.
            try (Statement s = c.createStatement()) {
                s.execute("CREATE TABLE nulls (k int PRIMARY KEY, ts timestamp, n int)");
            }
            try (PreparedStatement in = c.prepareStatement("INSERT INTO nulls VALUES (?, ?, ?)")) {
                for (int round = 0; round < 7; round++) {
                    in.setInt(1, round);
                    in.setTimestamp(2, null);
                    in.setNull(3, Types.INTEGER);
                    check(in.executeUpdate(), 1);
                }
            }
            try (Statement s = c.createStatement();
                 ResultSet rows = s.executeQuery("SELECT count(*) FROM nulls WHERE ts IS NULL AND n IS NULL")) {
                rows.next();
                check(rows.getInt(1), 7);
            }
            values(c, "uuid", "?", java.util.UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"));

            try (Statement s = c.createStatement()) {
                s.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar(20) NOT NULL, amount numeric(12,2) DEFAULT 1.5)");
                s.execute("CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM t GROUP BY name");
            }
            c.setAutoCommit(false);
            try (PreparedStatement in = c.prepareStatement("INSERT INTO t VALUES (?, ?, ?)")) {
                for (int i = 0; i < 1000; i++) {
                    in.setInt(1, i);
                    in.setString(2, "n" + i % 10);
                    in.setBigDecimal(3, new BigDecimal(i));
                    in.addBatch();
                }
                check(in.executeBatch().length, 1000);
            }
            c.rollback();
            try (Statement s = c.createStatement(); ResultSet rows = s.executeQuery("SELECT count(*) FROM t")) {
                rows.next();
                check(rows.getLong(1), 0L);
            }
            c.commit();
            try (Statement s = c.createStatement()) {
                check(s.executeUpdate("INSERT INTO t (id, name) SELECT v, 'n' FROM generate_series(1, 1000) AS g (v)"), 1000);
            }
            c.commit();
            try (Statement s = c.createStatement()) {
                s.setFetchSize(7);
                long sum = 0;
                try (ResultSet rows = s.executeQuery("SELECT id FROM t ORDER BY id")) {
                    while (rows.next()) {
                        sum += rows.getInt(1);
                    }
                }
                check(sum, 500500L);
            }
            c.commit();
            c.setAutoCommit(true);
            try (Statement s = c.createStatement()) {
                s.setQueryTimeout(1);
                s.executeQuery("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b");
                throw new AssertionError("not cancelled");
            } catch (SQLException error) {
                check(error.getSQLState(), "57014");
            }
            try (Statement s = c.createStatement()) {
                s.executeQuery("SELECT nope FROM t");
            } catch (SQLException error) {
                check(error.getSQLState(), "42703");
            }

            try (Statement s = c.createStatement()) {
                s.execute("DROP TABLE arrays");
                s.execute("DROP TABLE nulls");
            }
            DatabaseMetaData meta = c.getMetaData();
            check(meta.getDatabaseProductName(), "PostgreSQL");
            StringBuilder found = new StringBuilder();
            try (ResultSet rows = meta.getTables(null, "public", "%", new String[] {"TABLE", "MATERIALIZED VIEW"})) {
                while (rows.next()) {
                    found.append(rows.getString("TABLE_NAME")).append(':').append(rows.getString("TABLE_TYPE")).append(' ');
                }
            }
            check(found.toString(), "totals:MATERIALIZED VIEW t:TABLE ");
            found.setLength(0);
            try (ResultSet rows = meta.getColumns(null, "public", "t", "%")) {
                while (rows.next()) {
                    found.append(rows.getString("COLUMN_NAME")).append(':').append(rows.getString("TYPE_NAME"))
                         .append(':').append(rows.getInt("COLUMN_SIZE")).append(':').append(rows.getString("IS_NULLABLE"))
                         .append(' ');
                }
            }
            check(found.toString(), "id:int4:10:NO name:varchar:20:NO amount:numeric:12:YES ");
            found.setLength(0);
            try (ResultSet rows = meta.getPrimaryKeys(null, "public", "t")) {
                while (rows.next()) {
                    found.append(rows.getString("COLUMN_NAME")).append(':').append(rows.getInt("KEY_SEQ"))
                         .append(':').append(rows.getString("PK_NAME")).append(' ');
                }
            }
            check(found.toString(), "id:1:t_pkey ");
            try (Statement s = c.createStatement()) {
                s.execute("CREATE TABLE two (a int, b int, c int, PRIMARY KEY (c, a))");
            }
            found.setLength(0);
            try (ResultSet rows = meta.getPrimaryKeys(null, "public", "two")) {
                while (rows.next()) {
                    found.append(rows.getString("COLUMN_NAME")).append(':').append(rows.getInt("KEY_SEQ")).append(' ');
                }
            }
            check(found.toString(), "c:1 a:2 ");
            found.setLength(0);
            try (ResultSet rows = meta.getSchemas(null, "public")) {
                while (rows.next()) {
                    found.append(rows.getString("TABLE_SCHEM")).append(' ');
                }
            }
            check(found.toString(), "public ");
            try (ResultSet rows = meta.getTypeInfo()) {
                boolean known = false;
                while (rows.next()) {
                    known |= rows.getString("TYPE_NAME").equals("timestamptz");
                }
                check(known, true);
            }

            org.postgresql.copy.CopyManager copies = c.unwrap(PGConnection.class).getCopyAPI();
            check(copies.copyIn("COPY two FROM STDIN (FORMAT csv)", new StringReader("1,2,3\n4,5,6\n")), 2L);
            StringWriter out = new StringWriter();
            check(copies.copyOut("COPY (SELECT * FROM two ORDER BY a) TO STDOUT", out), 2L);
            check(out.toString(), "1\t2\t3\n4\t5\t6\n");
        }
        System.out.println("ok");
    }
}
