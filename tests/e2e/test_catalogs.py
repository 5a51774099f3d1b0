"""What clients ask to find out what is there: psql's backslash commands, SQLAlchemy's reflection."""

import subprocess

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm


@pytest.fixture
def filled(server):
    with server.connect() as connection:
        for statement in [
            "CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, amount numeric(12,2) DEFAULT 1.5, note varchar(20))",
            "CREATE TABLE plain (a timestamptz, b int[])",
            "CREATE VIEW big AS SELECT id FROM orders WHERE amount > 100",
            "CREATE MATERIALIZED VIEW totals AS SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            "CREATE SCHEMA other",
            "CREATE TABLE other.orders (k bigint PRIMARY KEY)",
            "INSERT INTO orders VALUES (1, 'ada', 150, 'x'), (2, 'bob', 5, NULL)",
        ]:
            connection.execute(statement)
    return server


def test_connector_tables_are_foreign_tables(server):
    with server.connect() as connection:
        connection.execute("CREATE TABLE made (a int) WITH (connector = 'datagen', number_of_rows = 3)")
    shown = psql(server, r"\d made", "-q")
    assert "a|integer" in shown and "Server: datagen" in shown
    assert "datagen|clink|clink" in psql(server, r"\des")
    assert "public|made|datagen" in psql(server, r"\det")
    for command in [r"\drds", r"\db", r"\dc"]:
        psql(server, command)


def test_names_of_relations_and_users(filled):
    with filled.connect() as connection:
        cursor = connection.execute("SELECT 'orders'::regclass, 'other.orders'::regclass")
        assert [column.name for column in cursor.description] == ["regclass", "regclass"]
        assert cursor.fetchone() == ("orders", "other.orders")
    assert psql(filled, "SELECT current_user, user, session_user").strip() == "me|me|me"


def test_psql_shows_keys(filled):
    # The lines below the table are left out of tuples alone.
    assert '"orders_pkey" PRIMARY KEY, btree (id)' in psql(filled, r"\d orders", "-q")


def test_psql_lists_functions(filled):
    with filled.connect() as connection:
        connection.execute("CREATE FUNCTION gross(net numeric, int) RETURNS numeric STRICT RETURN net * $2")
        connection.execute("CREATE FUNCTION other.nothing() RETURNS text[] RETURN NULL")
    assert "public|gross|numeric|net numeric, integer|func" in psql(filled, r"\df")
    assert "other|nothing|text[]||func" in psql(filled, r"\df other.*")
    assert "CREATE FUNCTION gross(net numeric, integer) RETURNS numeric STRICT" in psql(
        filled, "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'gross'"
    )


# Further commands of psql 15: whatever they list, they answer.
COMMANDS = """
\\d+ \\dS \\da \\dA \\dA+ \\dAc \\dAf \\dAo \\dAp \\db+ \\dc+ \\dconfig \\dC+ \\dd \\dd+ \\ddp \\dD+ \\des+ \\det+ \\deu
\\deu+ \\dew+ \\df+ \\dF \\dFd \\dFp \\dFt \\dg+ \\di+ \\dl \\dL \\dL+ \\dm+ \\dn+ \\do+ \\dO \\dO+ \\dp \\dP \\dRp \\dRs \\dRs+ \\ds+
\\dT+ \\du+ \\dv+ \\dx \\dx+ \\dX \\dy+ \\l+ \\z \\dE+ \\dtvmi+
""".split()


def test_psql_answers(filled):
    host, port = filled.pg.rsplit(":", 1)
    done = subprocess.run(
        ["psql", "-X", "-h", host, "-p", port, "-U", "me", "clink"],
        input="\n".join(COMMANDS),
        timeout=60,
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "FATAL" in line]
    assert not errors, errors


def test_psql_shows_functions_and_settings(filled):
    with filled.connect() as connection:
        connection.execute("CREATE FUNCTION gross(net numeric, int) RETURNS numeric STRICT RETURN net * $2")
    for command in [r"\sf gross", r"\sf public.gross(numeric, int)"]:
        assert psql(filled, command).startswith("CREATE FUNCTION gross(net numeric, integer) RETURNS numeric STRICT")
    assert "application_name|psql" in psql(filled, r"\dconfig")
    assert "statement_timeout|0" in psql(filled, r"\dconfig *")
    assert "statement_timeout|0|integer|user" in psql(filled, r"\dconfig+ *statement*")
    with filled.connect() as connection:
        connection.execute("SET statement_timeout = '5s'")
        got = connection.execute("SELECT setting, unit, source FROM pg_settings WHERE name = 'statement_timeout'").fetchone()
        assert got == ("5000", "ms", "session")
        size = connection.execute("SELECT pg_table_size('orders'::regclass), pg_size_pretty(1234567::bigint)").fetchone()
        assert size[0] > 0 and size[1] == "1206 kB"
        with pytest.raises(psycopg.errors.UndefinedFunction):
            connection.execute("SELECT 'nope'::regproc::oid")


def psql(server, command, tuples="-t"):
    host, port = server.pg.rsplit(":", 1)
    done = subprocess.run(
        ["psql", "-X", "-A", tuples, "-h", host, "-p", port, "-U", "me", "-v", "ON_ERROR_STOP=1", "clink", "-c", command],
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.mark.parametrize(
    "command, wanted",
    [
        (r"\d", ["public|orders|table|clink", "public|totals|materialized view|clink", "public|big|view|clink"]),
        (r"\dt", ["public|orders|table|clink", "public|plain|table|clink"]),
        (r"\dv", ["public|big|view|clink"]),
        (r"\dm", ["public|totals|materialized view|clink"]),
        (r"\di", ["public|orders_pkey|index|clink|orders"]),
        (r"\dt other.*", ["other|orders|table|clink"]),
        (r"\dn", ["other|clink", "public|clink"]),
        (r"\l", ["clink|clink|UTF8"]),
        (r"\du", ["clink"]),
        (r"\dT", []),
        (r"\df", []),
        (r"\d orders", ["id|integer||not null|", "amount|numeric(12,2)", "note|character varying(20)"]),
        (r"\d orders", ["amount|numeric(12,2)|||1.5"]),
        (r"\d+ totals", ["customer|text", "n|bigint"]),
        (r"\d plain", ["a|timestamp with time zone", "b|integer[]"]),
        (r"\d big", ["id|integer"]),
        (r"\d orders_pkey", ["id|integer"]),
        (r"\dt+", ["public|orders|table|clink"]),
        (r"\df lower", ["pg_catalog|lower|text|text|func", "pg_catalog|lower|anyelement|anyrange|func"]),
        (r"\df concat", ["pg_catalog|concat|text|VARIADIC \"any\"|func"]),
        (r"\dC", ["bigint|integer|int4|in assignment", "\"char\"|character|bpchar|in assignment", "box|circle|circle|no"]),
        (r"\d clink_catalog.operators", ["job|text", "rows_in|bigint", "state_bytes|bigint"]),
        (r"\d+ clink_catalog.jobs", ["since|timestamp with time zone"]),
        (r"\dt clink_catalog.*", ["clink_catalog|settings|table|clink", "clink_catalog|splits|table|clink"]),
        (r"\sv big", ["CREATE OR REPLACE VIEW public.big AS"]),
    ],
)
def test_psql(filled, command, wanted):
    out = psql(filled, command)
    for line in wanted:
        assert line in out, (command, out)


def test_information_schema(filled):
    with filled.connect() as connection:
        got = connection.execute(
            "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        ).fetchall()
        assert got == [("big", "VIEW"), ("orders", "BASE TABLE"), ("plain", "BASE TABLE"), ("totals", "MATERIALIZED VIEW")]
        got = connection.execute(
            "SELECT column_name, data_type, is_nullable, numeric_precision, character_maximum_length"
            " FROM information_schema.columns WHERE table_name = 'orders' AND table_schema = 'public' ORDER BY ordinal_position"
        ).fetchall()
        assert got == [
            ("id", "integer", "NO", 32, None),
            ("customer", "text", "NO", None, None),
            ("amount", "numeric", "YES", 12, None),
            ("note", "character varying", "YES", None, 20),
        ]
        assert connection.execute("SELECT version()").fetchone()[0].startswith("PostgreSQL 16")
        jobs = connection.execute("SELECT name, kind FROM clink_catalog.jobs ORDER BY name").fetchall()
        assert ("public.totals", "materialized view") in jobs
        assert connection.execute("SELECT count(*) > 10 FROM clink_catalog.settings").fetchone() == (True,)


def engine(server, **options):
    return sqlalchemy.create_engine(f"postgresql+psycopg://me@{server.pg}/clink", **options)


def test_sqlalchemy_reflection(filled):
    inspector = sqlalchemy.inspect(engine(filled))
    assert sorted(inspector.get_table_names()) == ["orders", "plain"]
    assert inspector.get_view_names() == ["big"]
    assert inspector.get_materialized_view_names() == ["totals"]
    assert set(inspector.get_schema_names()) >= {"public", "other"}
    columns = {column["name"]: column for column in inspector.get_columns("orders")}
    assert str(columns["amount"]["type"]) == "NUMERIC(12, 2)" and columns["id"]["nullable"] is False
    assert str(columns["note"]["type"]) == "VARCHAR(20)" and columns["amount"]["default"] == "1.5"
    assert inspector.get_pk_constraint("orders")["constrained_columns"] == ["id"]
    assert inspector.get_foreign_keys("orders") == [] and inspector.get_indexes("orders") == []
    table = sqlalchemy.Table("orders", sqlalchemy.MetaData(), autoload_with=engine(filled))
    assert [column.name for column in table.primary_key] == ["id"]


class Base(orm.DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    name: orm.Mapped[str]
    price: orm.Mapped[float | None]


def test_sqlalchemy_round_trip(server):
    # Several statements of DDL are not one block.
    Base.metadata.create_all(engine(server, isolation_level="AUTOCOMMIT"))
    with orm.Session(engine(server)) as session:
        session.add_all([Thing(id=1, name="a", price=1.5), Thing(id=2, name="b", price=None)])
        session.commit()
        thing = session.get(Thing, 2)
        thing.price = 2.5
        session.commit()
        assert session.scalars(sqlalchemy.select(Thing.price).order_by(Thing.id)).all() == [1.5, 2.5]
        session.delete(session.get(Thing, 1))
        session.commit()
        assert session.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(Thing)) == 1
